"""Parquet reader with bounded memory."""
