"""Handling common to all calls: admission control, deadlines, error statuses, health."""
