"""LMDB transactions of the store: environment, read and write views, scans, group commit."""
