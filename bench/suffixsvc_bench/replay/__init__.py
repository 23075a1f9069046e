"""Replay of recorded logs without a model: what a drafting method would have drafted, and how
much was right."""
