"""Listening sockets of the service."""
