"""Readers of text formats: CSV, JSON documents, batch request files."""
