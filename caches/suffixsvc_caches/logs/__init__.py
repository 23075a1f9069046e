"""Logs of what models wrote, whatever wrote them down, as a stream of calls.

    options = ReadOptions.parse(format="auto", agents=["sql"], split="gap:30m")
    tally = LogTally()
    for file in find_logs([Path("logs")], options):
        for call in read_calls(file, options, tally):
            ...
    print(tally.describe())

Formats, mapping of fields and what is done about bad input: docs/logs.md.
"""

from suffixsvc_caches.logs.call import Content, LogCall
from suffixsvc_caches.logs.files import LogFile, Storage, find_logs
from suffixsvc_caches.logs.options import (
    ChatTemplate,
    LogFilter,
    LogFormat,
    ReadOptions,
    SessionSplit,
    SplitBy,
    ToolFormat,
)
from suffixsvc_caches.logs.read import read_calls
from suffixsvc_caches.logs.tally import MAX_FAULTS, LogCounts, LogFault, LogTally

__all__ = [
    "MAX_FAULTS",
    "ChatTemplate",
    "Content",
    "LogCall",
    "LogCounts",
    "LogFault",
    "LogFile",
    "LogFilter",
    "LogFormat",
    "LogTally",
    "ReadOptions",
    "SessionSplit",
    "SplitBy",
    "Storage",
    "ToolFormat",
    "find_logs",
    "read_calls",
]
