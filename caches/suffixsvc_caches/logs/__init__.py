"""Readers of logs of model calls in many formats, as a stream of calls.

    options = ReadOptions.parse(format="auto", agents=["sql"], split="gap:30m")
    report = ReadReport()
    for file in find_logs([Path("logs")], options):
        for call in read_calls(file, options, report):
            ...
    print(report.describe())

docs/logs.md describes the formats, the mapping of fields, and the treatment of bad input.
"""

from suffixsvc_caches.logs.base.options import LogFormat, ReadOptions
from suffixsvc_caches.logs.calls.call import LogCall
from suffixsvc_caches.logs.files import LogFile, find_logs
from suffixsvc_caches.logs.read import read_calls
from suffixsvc_caches.logs.report import ReadReport

__all__ = ["LogCall", "LogFile", "LogFormat", "ReadOptions", "ReadReport", "find_logs", "read_calls"]
