"""Building caches offline from logs. So far: llama.cpp's lookup caches, :mod:`suffixsvc_caches.lookup`."""
