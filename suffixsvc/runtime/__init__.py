"""Processes, threads and signals: child processes, server lifecycle, background tasks, log output."""
