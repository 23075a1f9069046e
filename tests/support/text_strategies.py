"""Strategies of texts."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


def text_of(alphabet: Sequence[int], longest: int, shortest: int = 1) -> st.SearchStrategy[list[int]]:
    """Texts of ``shortest`` to ``longest`` tokens of an alphabet of at most 256.

    Hypothesis draws bytes at once, but the elements of a list one by one, which took nine tenths of the time
    of tests of many short texts.
    """
    return (
        st.integers(shortest, longest)  # long ones as often as short ones
        .flatmap(lambda n: st.binary(min_size=n, max_size=n))
        .map(lambda drawn: [alphabet[byte % len(alphabet)] for byte in drawn])
    )
