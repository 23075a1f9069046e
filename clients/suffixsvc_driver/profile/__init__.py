"""Measurements of a target or a pair of models, and the settings derived from them."""
