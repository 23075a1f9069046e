"""Drafts as values: chains, trees, and the events that carry them."""
