"""Copies of a log in a new data file: of an open log for a backup, of what can be read of a damaged one."""
