"""Verbs on models: models, probe, compat, demo."""
