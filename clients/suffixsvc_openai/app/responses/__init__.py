"""The endpoints of the Responses API."""
