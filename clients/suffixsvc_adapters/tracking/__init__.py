"""Session tracking for engines that have no sessions.

session_tracker    drafts for sequences that are identified by their tokens
tracker_types      its configuration, its counters, and a draft request
sequence_table     the table of live sequences; live_sequence: one of them
async_close        the thread that closes their sessions
clean_draft        validation of a backend's draft; tree_mask: its encoding for tree attention
adapter_base       base class of adapters that own a tracker
"""
