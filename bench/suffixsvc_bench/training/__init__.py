"""Training of the starting weights of new namespaces."""
