"""The stream from a service: contents, changes and live text of the namespaces that are followed."""
