"""Options, progress bars and log output that several verbs share."""
