"""OpenAI's requests, responses and errors, validated; knows neither HTTP nor the engine."""
