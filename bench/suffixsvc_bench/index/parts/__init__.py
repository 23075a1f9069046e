"""Measurements of the index: single operations, locks, the peer, restarts, sealed segments."""
