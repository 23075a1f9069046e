"""Backups of data folders: written while a cache is open, verified and restored."""
