"""The endpoints of chat and text completions."""
