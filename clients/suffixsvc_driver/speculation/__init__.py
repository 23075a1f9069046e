"""State machine of the driver: which layers to query, what to verify, what was accepted."""
