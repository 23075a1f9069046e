"""Decoding loops for one and for several generations, chat sessions, detokenization, exactness checks."""
