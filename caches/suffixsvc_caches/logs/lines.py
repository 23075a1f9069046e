"""Lines of a stream of bytes, none of which is ever held beyond a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["split_lines"]


def split_lines(pieces: Iterable[bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line without its newline) of each line; None stands for a line of more than ``limit``
    bytes. Where ``pieces`` raises, the lines before have been handed out; the unfinished one is not."""
    number = 1
    rest: list[bytes] = []  # the pieces of a line whose newline is still to come
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        size += len(first)
        if size <= limit:
            rest.append(first)
        else:
            rest.clear()
        if not others:
            continue
        yield number, b"".join(rest) if size <= limit else None
        for line in others[:-1]:
            number += 1
            yield number, line if len(line) <= limit else None
        number += 1
        size = len(others[-1])
        rest = [others[-1]] if size <= limit else []
    if size:
        yield number, b"".join(rest) if size <= limit else None
