"""Conversion between wire messages and checked values, with limits on untrusted input."""
