"""Contents of messages and items: texts, or parts of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_SHOWN = 40


class PartError(ValueError):
    """A part of a content is not text. The message follows "must".

    Attributes:
        index: of the part.
        field: of the part which is not a string; "" if the part has another type.
        got: the type, or the value of the field.
    """

    def __init__(self, index: int, field: str, got: Any) -> None:
        self.index, self.field, self.got = index, field, got
        shown = repr(got)[:_SHOWN]
        super().__init__(
            f"have parts whose {field} is a string, not {shown}"
            if field
            else f"have parts of type text only, not {shown}: this server has no other input"
        )


def joined_text(parts: Iterable[Any], types: Sequence[str]) -> str:
    """Return the text of parts of certain types. Raises PartError."""
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in types:
            raise PartError(index, "", kind)
        field = "refusal" if kind == "refusal" else "text"
        if not isinstance(part.get(field), str):
            raise PartError(index, field, part.get(field))
        texts.append(part[field])
    return "".join(texts)
