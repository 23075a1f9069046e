"""Offline construction of caches from logs: corpora of namespaces, and llama.cpp's lookup caches."""
