"""Published runs of namespaces with ``min_principals``: collecting texts, building, withdrawing."""
