"""Calls that `bench decode` makes, and the outcome of each."""
