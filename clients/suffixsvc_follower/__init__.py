"""Followers: copies of namespaces in the process that decodes, drafted from without a call.

A follower reads the log of a service on (``Watch``), keeps the outputs of the namespaces that it uses and the
live text of its siblings, drafts from them, and sends what is written here to the service in the background.
"""
