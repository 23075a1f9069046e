"""Outputs between log and index: addition, commit, deletion."""
