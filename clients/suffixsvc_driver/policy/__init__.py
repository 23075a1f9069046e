"""Decision rules of the driver: expected gain, calibration, query value, K controllers, batch budget."""
