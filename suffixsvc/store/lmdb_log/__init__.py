"""The log in LMDB: environment, databases, group commit, the store's thread."""
