"""Processes, threads, signals and files: server lifecycle, background tasks, log output, atomic files."""
