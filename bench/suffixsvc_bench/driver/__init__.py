"""The driver's own time per step."""
