"""Limits of the engine and the service, and validation of namespace paths, labels and uuids."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from suffixsvc.errors import InvalidConfigError, InvalidInputError, InvalidLabelsError, InvalidNamespaceError
from suffixsvc.types import MODES, Mode

#: LMDB keys hold at most 511 bytes, of which the path is one part
MAX_NAMESPACE_BYTES = 200
_PATH_FORM = "components joined by '/', as in acme/qwen2.5-coder/sql-agent"
#: namespaces that a session can draft from besides its own (the core holds a fixed number of cursors)
MAX_READS = 7
#: as ``max_cache_bytes``: no limit
NO_LIMIT_BYTES = 1 << 62
#: characters of a label's value
MAX_LABEL_CHARACTERS = 256
#: bytes of an output's labels in the log (:func:`labels_size`)
MAX_LABELS_BYTES = 4096
#: tokens of a prompt's end that are stored with an output, as context only
PROMPT_TAIL_TOKENS = 64
#: bytes of the id that the writer of an output chooses
UUID_BYTES = 16
MAX_PRINCIPAL_CHARACTERS = 128
_PRINCIPAL = re.compile(rf"[A-Za-z0-9._@:-]{{1,{MAX_PRINCIPAL_CHARACTERS}}}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the engine and the service enforce. All are per process."""

    #: concurrent live sessions
    max_sessions: int = 4096
    #: namespaces; each has an index in memory
    max_namespaces: int = 10_000
    #: tokens of one session: prompt, context and output together
    max_session_tokens: int = 1 << 20
    #: tokens of one draft; larger requests are clamped, not rejected
    max_draft_tokens: int = 256
    #: bytes of one gRPC message
    max_message_bytes: int = 16 << 20
    #: outputs of one bulk message, which is one transaction that closes of sessions wait for
    max_outputs_per_message: int = 1024
    #: runs (segment_lens) of all outputs of one bulk message; an output has at least one
    max_segments_per_message: int = 16_384
    #: tokens of one output added in bulk
    max_output_tokens: int = 1 << 20
    #: an idle session is committed as incomplete after this many seconds
    session_idle_seconds: float = 600.0
    #: delay of the expiry of outputs that are due only because the wall clock moved while the store was
    #: closed
    expiry_grace_seconds: float = 3600.0
    #: tokens of a namespace's hot outputs above which the oldest are sealed into a segment
    seal_tokens: int = 1 << 20
    #: maximum size of the store's map in bytes
    max_store_bytes: int = 64 << 30
    #: bytes of the outputs of all namespaces and the live sessions together (docs/limits.md); unlimited by
    #: default
    max_cache_bytes: int = NO_LIMIT_BYTES

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            integral = f.type in ("int", int)
            if isinstance(value, bool) or not isinstance(value, int if integral else (int, float)):
                kind = "an int" if integral else "a number"
                raise InvalidConfigError(f"{f.name} must be {kind}", got=repr(value))
            if not math.isfinite(value) or value <= 0:
                raise InvalidConfigError(f"{f.name} must be a positive number", got=repr(value))


def is_at_or_above(path: str, other: str) -> bool:
    """Whether a namespace path is ``other``, or above it by whole components; "" is above all."""
    return not path or f"{other}/".startswith(f"{path}/")


def validate_namespace(path: Any) -> str:
    """Return a valid namespace path: components of printable characters without spaces, joined by '/'.

    Raises:
        InvalidNamespaceError: not a string, not 1 to 200 bytes long, or a component is invalid.
    """
    if not isinstance(path, str):
        raise InvalidNamespaceError(
            "namespace path must be a string", expected=_PATH_FORM, got=type(path).__name__
        )
    size = len(path.encode("utf-8", "surrogatepass"))
    parts, got = path.split("/"), repr(path)
    condition = remedy = None
    if not 0 < size <= MAX_NAMESPACE_BYTES:
        condition, got = f"1 to {MAX_NAMESPACE_BYTES} bytes long", f"{size} bytes"
    elif any(c.isspace() for c in path):
        condition, remedy = "without spaces", "Write '-' or '_' instead."
    elif not path.isprintable():
        condition = "of printable characters"
    elif "" in parts:
        condition, remedy = "without empty components", "Join names by single slashes."
    elif "." in parts or ".." in parts:
        condition = "without the components '.' and '..'"
    if condition is not None:
        raise InvalidNamespaceError(
            f"namespace path must be {condition}", expected=_PATH_FORM, got=got, remedy=remedy
        )
    return path


def validate_reads(reads: Any) -> Sequence[Any]:
    """The paths that a session reads; each path is validated where it is looked up or sent."""
    if reads is None:
        return ()
    if isinstance(reads, (str, bytes)) or not isinstance(reads, Sequence):
        raise InvalidInputError(
            "reads must be a list of paths",
            got=repr(reads)[:80],
            remedy=f"For one path write [{reads!r}]." if isinstance(reads, str) else None,
        )
    return reads


def validate_mode(mode: Any) -> Mode:
    """Return the mode of a connection to a service. InvalidConfigError for anything else."""
    for known in MODES:
        if mode == known:
            return known
    raise InvalidConfigError("mode must be one of " + ", ".join(MODES), got=repr(mode)[:80])


def validate_default_reads(tokenizers: Iterable[str]) -> None:
    """Check that a session can read all default namespaces of its tokenizer.

    Args:
        tokenizers: fingerprint of each namespace that is read by default.

    Raises:
        InvalidConfigError: more than MAX_READS of them have the same tokenizer.
    """
    for tokenizer, number in Counter(tokenizers).items():
        if tokenizer and number > MAX_READS:
            raise InvalidConfigError(
                f"namespaces read by default must be at most {MAX_READS} per tokenizer",
                got=f"{number} of {tokenizer}",
                remedy="Merge some of them into one.",
            )


def labels_size(labels: Mapping[str, str]) -> int:
    """Bytes of labels in the log: names and values in UTF-8, and 4 for each."""
    return sum(4 + len(name.encode()) + len(value.encode()) for name, value in labels.items())


def validate_labels(labels: Any) -> dict[str, str]:
    """Return labels as a dict.

    Raises:
        InvalidLabelsError: more than 16, a name that is not 1 to 64 characters long, a value of more than
            MAX_LABEL_CHARACTERS characters, or more than MAX_LABELS_BYTES bytes together.
    """
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise InvalidLabelsError(
            "labels must be a mapping of strings", expected="Mapping[str, str]", got=type(labels).__name__
        )
    if len(labels) > 16:
        raise InvalidLabelsError("labels must have at most 16 entries", got=len(labels))
    for name, value in labels.items():
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not _encodable(name):
            raise InvalidLabelsError(
                "label names must be strings",
                expected="1 to 64 characters of valid UTF-8",
                got=repr(name)[:80],
            )
        if not isinstance(value, str) or len(value) > MAX_LABEL_CHARACTERS or not _encodable(value):
            raise InvalidLabelsError(
                f"label {name!r} must be a string",
                expected=f"at most {MAX_LABEL_CHARACTERS} characters of valid UTF-8",
                got=repr(value)[:80],
            )
    size = labels_size(labels)
    if size > MAX_LABELS_BYTES:
        raise InvalidLabelsError(
            f"labels must have at most {MAX_LABELS_BYTES} bytes together",
            expected=f"names and values of at most {MAX_LABELS_BYTES} bytes in UTF-8, with 4 for each label",
            got=f"{size} bytes",
            remedy="Write shorter labels; an id of what they describe is enough.",
        )
    return dict(labels)


def validate_uuid(uuid: Any) -> bytes:
    """Return a valid output uuid. InvalidInputError unless it is 16 bytes."""
    if not isinstance(uuid, bytes) or len(uuid) != UUID_BYTES:
        raise InvalidInputError(
            f"uuid must be {UUID_BYTES} bytes",
            expected=f"bytes of length {UUID_BYTES}",
            got=f"{len(uuid)} bytes" if isinstance(uuid, bytes) else type(uuid).__name__,
            remedy="Send a random one, or omit it: the store then generates one.",
        )
    return uuid


def validate_principal(principal: Any) -> str:
    """Return a valid name of a principal, or "" for the operator. InvalidInputError for anything else."""
    if not isinstance(principal, str) or not (principal == "" or _PRINCIPAL.fullmatch(principal)):
        raise InvalidInputError(
            "principal must be a name, or empty for the operator",
            expected=f"1 to {MAX_PRINCIPAL_CHARACTERS} letters, digits and . _ - @ :",
            got=repr(principal)[:80],
        )
    return principal


def _encodable(text: str) -> bool:
    """Whether text can be stored and sent: a lone surrogate cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def data_home() -> str:
    """Folder of downloads and measured cost curves: $SUFFIXSVC_HOME or ~/.cache/suffixsvc.

    Raises:
        InvalidConfigError: SUFFIXSVC_HOME is a relative path.
    """
    home = os.environ.get("SUFFIXSVC_HOME")
    if home is not None and not os.path.isabs(os.path.expanduser(home)):
        raise InvalidConfigError(
            "SUFFIXSVC_HOME must be an absolute path",
            got=repr(home),
            remedy="Unset it to use ~/.cache/suffixsvc.",
        )
    return os.path.expanduser(home) if home else os.path.expanduser("~/.cache/suffixsvc")
