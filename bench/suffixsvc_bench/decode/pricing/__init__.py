"""Decoding at costs of other machines: replayed outputs and a supplied cost curve."""
