"""The log in LMDB: environment, databases, group commit, the writer thread."""
