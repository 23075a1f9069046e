"""llama.cpp lookup caches: the n-gram files of ``--lookup-cache-static`` and ``--lookup-cache-dynamic``."""
