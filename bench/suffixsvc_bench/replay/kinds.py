"""Classification of a log's text by a rule on its lines, which is printed with every result.

The heuristics are those with which the adaptive draft length is usually chosen: JSON has ``"key":``; code has
braces at line ends, ``def``, ``class``, ``import``, SQL statements or four-space indents; the rest is prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["RULE", "UNKNOWN", "kind_of"]

UNKNOWN: Final = "unknown"
#: least share of non-empty lines of a kind
_ENOUGH: Final = 0.4
#: characters of the first answers that are classified
_CHARACTERS: Final = 400_000

_JSON: Final = re.compile(r'"[^"\n]{1,80}"\s*:|^\s*[\[{}\]],?\s*$')
_CODE: Final = re.compile(
    r"^(?: {4}|\t)|^\s*(?:def|class|import|from|return|func|fn|function|public|#include|use|let|const|var)\b"
    r"|[{};]\s*$"
    r"|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|WITH)\b.*\b(?:FROM|INTO|SET|TABLE|AS)\b",
    re.IGNORECASE,
)

RULE: Final = (
    f"a log is json or code when at least {_ENOUGH:.0%} of its answers' non-empty lines look like it "
    '("key": or a lone bracket; four-space indents, keywords, a line ending in a brace or semicolon, SQL), '
    "json first; otherwise prose. unknown: the log has token ids only"
)


def kind_of(texts: Iterable[str]) -> str:
    """ "json", "code", "prose", or :data:`UNKNOWN` without text. See :data:`RULE`."""
    lines = json = code = seen = 0
    for text in texts:
        for line in text.splitlines():
            if not line.strip():
                continue
            lines += 1
            if _JSON.search(line):
                json += 1
            elif _CODE.search(line):
                code += 1
        seen += len(text)
        if seen >= _CHARACTERS:
            break
    if not lines:
        return UNKNOWN
    if json >= _ENOUGH * lines:
        return "json"
    return "code" if code >= _ENOUGH * lines else "prose"
