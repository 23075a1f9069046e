"""Selection of outputs and live sessions for a deletion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from suffixsvc.config import validate_labels, validate_namespace, validate_principal
from suffixsvc.errors import InvalidInputError
from suffixsvc.types import Labels, OutputId
from suffixsvc.values import as_int

#: upper bound of output ids
MAX_OUTPUT_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """What to delete: the outputs and live sessions that meet every criterion that is given.

    Live sessions have neither an id of an output nor an age: a selection with one of these criteria takes
    outputs only.

    Attributes:
        namespace: path of the namespace; "": all namespaces. Alone it selects everything in it.
        output_ids: ids of outputs; None: any.
        session_id: id of the session that wrote it; "": any.
        labels: values of labels, all of which must be equal.
        principal: who wrote it, "" the operator; None: any.
        older_than_seconds: it was written at least so long ago, in store time; None: at any time.

    Raises:
        InvalidInputError: no criterion is given, or one is malformed.
    """

    namespace: str = ""
    output_ids: Sequence[OutputId] | None = None
    session_id: str = ""
    labels: Labels = field(default_factory=dict)
    principal: str | None = None
    older_than_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.namespace != "":
            validate_namespace(self.namespace)
        _set(self, "labels", validate_labels(self.labels))
        if self.output_ids is not None:
            _set(self, "output_ids", _as_ids(self.output_ids))
        if not isinstance(self.session_id, str):
            raise InvalidInputError("session_id must be a string", got=repr(self.session_id)[:80])
        if self.principal is not None:
            validate_principal(self.principal)
        age = self.older_than_seconds
        if age is not None and (
            isinstance(age, bool) or not isinstance(age, (int, float)) or not 0 <= age < math.inf
        ):
            raise InvalidInputError("older_than_seconds must be a finite number >= 0", got=repr(age)[:80])
        if not (self.namespace or self.session_id or self.labels) and all(
            value is None for value in (self.output_ids, self.principal, age)
        ):
            raise InvalidInputError(
                "selection must have at least one criterion",
                expected="a namespace, output ids, a session, labels, a principal or an age",
                got="none",
                remedy="Name the namespace to delete everything in it.",
            )

    @property
    def takes_sessions(self) -> bool:
        """Whether live sessions can be selected."""
        return self.output_ids is None and self.older_than_seconds is None

    def takes(self, session_id: str, labels: Mapping[str, str], principal: str) -> bool:
        """Whether a writer meets the criteria about writers."""
        return (
            (not self.session_id or self.session_id == session_id)
            and (self.principal is None or self.principal == principal)
            and all(labels.get(name) == value for name, value in self.labels.items())
        )


def _set(selection: Selection, name: str, value: Any) -> None:
    object.__setattr__(selection, name, value)  # frozen


def _as_ids(output_ids: Any) -> tuple[OutputId, ...]:
    try:
        given = tuple(output_ids)
    except TypeError:
        raise InvalidInputError("output_ids must be a list of ids", got=repr(output_ids)[:80]) from None
    if not given:
        raise InvalidInputError("output_ids must hold at least one id", got=0)
    return tuple(dict.fromkeys(as_int("output_ids", each, 1, MAX_OUTPUT_ID) for each in given))
