"""Metrics of the service for Prometheus: definitions, collection when they are scraped, HTTP."""
