"""Subjects of `bench http`: servers as processes, and the driver called directly."""
