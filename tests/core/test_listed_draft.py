"""Drafts that the core gives as lists are drafts as any others."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest

from suffixsvc import Draft
from suffixsvc.types import ListedDraft
from suffixsvc_driver.drafts.chain import columns_of

LISTS = ([5, 6, 7], [-1, 0, 0], [0.5, 0.25, 0.125], [2, 2, 1], [4, 5, 5])
DTYPES = [np.int32, np.int32, np.float32, np.uint8, np.int32]


def made() -> ListedDraft:
    return ListedDraft.of(*(list(each) for each in LISTS))  # type: ignore[arg-type]  # columns of two types


@pytest.mark.parametrize(
    "as_other",
    [
        lambda draft: draft,
        copy.copy,
        copy.deepcopy,
        replace,
        lambda draft: draft.head(3),
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_fields_are_arrays(as_other: object, read_before: bool) -> None:
    draft = made()
    assert len(draft) == 3
    if read_before:
        assert draft.probs is draft.probs
    other = as_other(draft)  # type: ignore[operator]  # a function of the list above
    assert isinstance(other, Draft)
    assert columns_of(other) == tuple(map(list, LISTS[:4]))
    columns = [getattr(other, field.name) for field in fields(Draft)]
    assert [column.dtype for column in columns] == DTYPES
    assert [column.tolist() for column in columns] == list(LISTS)
    assert len(other) == 3
    assert columns_of(other) == tuple(map(list, LISTS[:4]))
    assert repr(other).startswith("ListedDraft(token_ids=array([5, 6, 7], dtype=int32)")


def test_what_is_written_to_an_array_is_kept() -> None:
    draft = made()
    draft.probs[:] *= 0.5
    found = columns_of(draft)
    assert found is not None
    assert found[2] == [0.25, 0.125, 0.0625]


def test_there_are_no_other_attributes() -> None:
    draft = made()
    for _ in range(2):
        with pytest.raises(AttributeError, match="nothing"):
            draft.nothing  # noqa: B018 - raises  # type: ignore[attr-defined]
        assert draft.sources.tolist() == [2, 2, 1]
