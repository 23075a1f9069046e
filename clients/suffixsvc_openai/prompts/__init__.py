"""Prompts: messages of the API, rendered by the chat template of the model."""
