"""Verb `generate`: text on a local model with every drafting layer."""
