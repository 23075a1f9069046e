"""Transactions of a store, wherever its log is: read and write views, operations, scans, checks."""
