"""Adversarial inputs of string indexes: texts with extreme repetition or branching."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def run_of_one_token(n: int, random: Random) -> list[int]:
    return [random.randrange(1 << 31)] * n


def short_period(n: int, random: Random) -> list[int]:
    period = [random.randrange(3) for _ in range(random.randint(2, 9))]
    return (period * n)[:n]


def fibonacci_word(n: int, random: Random) -> list[int]:
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


def thue_morse(n: int, random: Random) -> list[int]:
    return [bin(i).count("1") & 1 for i in range(n)]


def de_bruijn(n: int, random: Random) -> list[int]:
    """Every binary word of a length once: no long repeat, every short context branches."""
    word = (0,) * 15
    seen = {word}
    out: list[int] = []
    while len(out) < n:
        for bit in (1, 0):
            following = (*word[1:], bit)
            if following not in seen:
                break
        seen.add(following)
        word = following
        out.append(bit)
    return out


def two_letters(n: int, random: Random) -> list[int]:
    return [random.randrange(2) for _ in range(n)]


def int32_edges(n: int, random: Random) -> list[int]:
    return [random.choice([0, 1, 2**31 - 1, 2**31 - 2]) for _ in range(n)]


def large_alphabet(n: int, random: Random) -> list[int]:
    return [random.randrange(150_000) for _ in range(n)]


def runs_with_marks(n: int, random: Random) -> list[int]:
    """a^k b a^k c a^k d ...: long equal stretches that always end differently."""
    out: list[int] = []
    mark = 1
    while len(out) < n:
        out += [0] * random.randint(1, 80) + [mark]
        mark += 1
    return out[:n]


def growing_prefixes(n: int, random: Random) -> list[int]:
    """w1 w1w2 w1w2w3 ...: every prefix again, one token longer."""
    base = [random.randrange(4) for _ in range(200)]
    out: list[int] = []
    k = 1
    while len(out) < n:
        out += base[:k]
        k = k % len(base) + 1
    return out[:n]


ALL: dict[str, Callable[[int, Random], list[int]]] = {
    f.__name__: f
    for f in (
        run_of_one_token,
        short_period,
        fibonacci_word,
        thue_morse,
        de_bruijn,
        two_letters,
        int32_edges,
        large_alphabet,
        runs_with_marks,
        growing_prefixes,
    )
}
