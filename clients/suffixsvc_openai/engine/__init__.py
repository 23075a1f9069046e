"""The model, its lanes, and the stored outputs, for concurrent asyncio callers."""
