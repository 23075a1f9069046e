"""Logs of what models wrote, whatever wrote them down, as a stream of calls."""

from suffixsvc_caches.logs.call import LogCall

__all__ = ["LogCall"]
