"""Settings of the driver: policies, layers, model classes and kinds of text."""
