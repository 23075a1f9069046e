"""Heuristic classification of text into code, JSON, prose and other, to choose a range of K."""

from __future__ import annotations

import enum
import re
from typing import Final


class ContentType(enum.StrEnum):
    """Kind of text, by its useful draft length."""

    CODE = "code"
    JSON = "json"
    PROSE = "prose"
    GENERAL = "general"


#: characters at the end of a text that are classified
_WINDOW: Final = 2000
_JSON_KEY: Final = re.compile(r'"[^"\n]{1,80}"\s*:')
_CODE_LINE: Final = re.compile(
    r"^(?:\s{4,}\S|\t+\S|\s*(?:def|class|import|from|return|if|for|while|function|const|let|var|public|private"
    r"|SELECT|FROM|WHERE|JOIN|GROUP BY|ORDER BY|INSERT|UPDATE)\b|.*[{};]\s*$|[+-]{1,3}\s|@@\s)"
)
_SENTENCE: Final = re.compile(r"[a-zà-ÿ,]+ [a-zà-ÿ]+ [^.!?\n]{10,}[.!?](?:\s|$)")


def content_type(text: str) -> ContentType:
    """Return the kind of the end of ``text``.

    Quoted keys are JSON; braces, keywords and indents are code; sentences are prose; other text, and an empty
    one, is general.
    """
    end = text[-_WINDOW:]
    lines = [line for line in end.splitlines() if line.strip()]
    if not lines:
        return ContentType.GENERAL
    keys = len(_JSON_KEY.findall(end))
    if keys >= 2 and keys >= len(end) / 150:
        return ContentType.JSON
    code = sum(bool(_CODE_LINE.match(line)) for line in lines)
    if code >= 0.4 * len(lines):
        return ContentType.CODE
    sentences = sum(len(match.group()) for match in _SENTENCE.finditer(end))
    return ContentType.PROSE if sentences >= 0.4 * len(end) else ContentType.GENERAL
