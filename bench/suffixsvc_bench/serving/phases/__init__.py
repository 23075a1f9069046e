"""Parts of `bench http`: one client, several clients, a conversation, JSON schemas."""
