"""Offline checks of data folders, and rebuilding of damaged ones."""
