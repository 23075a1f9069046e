"""Sessions of the service: table, steps, expiry, sessions whose close failed."""
