"""Model calls of logs: prompts, responses and fields."""
