"""Building caches offline from logs. Nothing is built yet; the package holds the name."""
