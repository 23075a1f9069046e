"""Verbs on logs and corpora: build, export, replay."""
