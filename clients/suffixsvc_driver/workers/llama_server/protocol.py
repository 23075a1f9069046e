"""Requests to a llama-server and validation of its replies: pure functions between JSON and our types.

Written for b11434. Greedy drafts come from one sampler that leaves one token; the probabilities returned with
them are the model's before any sampler, and are normalised over the ``top_k`` best tokens, as our own worker
does. Replies are untrusted input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.types import Draft, DraftSource

_FIELDS: Final = ["tokens", "completion_probabilities", "timings/predicted_per_token_ms"]
_SPEED_FIELD: Final = _FIELDS[-1]
#: fields of /props that identify a server process, or at least its model
_IDENTITY: Final = ("model_path", "model_alias", "model_ftype", "build_info", "media_marker")


def completion_request(context: Sequence[int], count: int, top_k: int) -> dict[str, Any]:
    """Return the body of POST /completion for a greedy draft of ``count`` tokens after ``context``; with 0,
    the server only computes the context."""
    return {
        "prompt": list(context),
        "n_predict": count,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "n_probs": top_k if count else 0,
        "return_tokens": True,
        "cache_prompt": True,
        "response_fields": _FIELDS,
    }


def parse_completion(reply: object, count: int, p_min: float, vocab_size: int) -> Draft:
    """Return the draft in a reply, cut before the first token less likely than ``p_min``.

    A token whose bytes end inside a character has no probability (the server sends one for the character's
    last token only): the draft ends before it.

    Raises:
        ProtocolError: a malformed reply.
    """
    tokens = parse_tokens({"tokens": _list(reply, "tokens")[:count]}, vocab_size)
    entries = iter(_list(reply, "completion_probabilities", []))
    entry = next(entries, None)
    ids: list[int] = []
    probs: list[float] = []
    for token in tokens:
        if entry is None or _field(entry, "id") != token:
            break
        prob = _probability(entry)
        if prob < p_min:
            break
        ids.append(token)
        probs.append(prob)
        entry = next(entries, None)
    return Draft.chain(ids, probs, DraftSource.DRAFT_MODEL) if ids else Draft.empty()


def seconds_per_token(reply: object) -> float:
    """Return the server's time of a drafted token; 0 if it sent none or an invalid one."""
    value = _field(reply, _SPEED_FIELD)
    return float(value) / 1e3 if _is_number(value) and value > 0 else 0.0


def parse_tokens(reply: object, vocab_size: int) -> list[int]:
    """Return the token ids in a reply of POST /tokenize or /completion.

    Raises:
        ProtocolError: not ids of this vocabulary.
    """
    tokens = _list(reply, "tokens")
    for token in tokens:
        if not _is_id(token, vocab_size):
            _malformed(f"token ids in 0 .. {vocab_size - 1}", token)
    return tokens


def parse_pieces(reply: object, first_id: int, count: int) -> list[bytes]:
    """Return the texts of ``count`` consecutive ids in a reply of POST /tokenize ``with_pieces``.

    Raises:
        ProtocolError: texts of other ids, or a malformed reply.
    """
    found = _list(reply, "tokens")
    if len(found) != count:
        _malformed(f"{count} token texts", len(found))
    texts = []
    for token, entry in enumerate(found, start=first_id):
        if not isinstance(entry, dict):
            raise ProtocolError(
                "this server does not return the texts of its tokens",
                expected="pieces in the reply of POST /tokenize",
                got=repr(entry)[:80],
                remedy="Use a llama-server of September 2024 or later.",
            )
        if entry.get("id") != token:
            _malformed(f"token {token}", entry.get("id"))
        texts.append(_piece(entry.get("piece")))
    return texts


def instance_of(props: object) -> str:
    """Return an id of the server process from a reply of GET /props. Recent servers have a marker per
    process; for older ones the id identifies only the model."""
    return "|".join(str(_field(props, name))[:200] for name in _IDENTITY)


def number(reply: object, *path: str) -> int:
    """Return the positive integer at a path in a reply; 0 if there is none."""
    for name in path:
        reply = reply.get(name) if isinstance(reply, dict) else None
    return reply if isinstance(reply, int) and not isinstance(reply, bool) and reply > 0 else 0


def error_from_reply(status: int, reply: object, address: object) -> SuffixError:
    """Convert a reply with a status other than 200 to an error."""
    detail = _field(reply, "error")
    kind, message = _field(detail, "type"), str(_field(detail, "message") or detail)[:300]
    if kind == "exceed_context_size_error":
        return LimitExceededError("the context is longer than the draft model's", got=message)
    if status in (401, 403):
        return ServiceUnavailableError(
            f"the llama-server at {address} requires an API key",
            got=f"{status} {message}",
            remedy="Start the drafting server without --api-key, on an address that only you can reach.",
        )
    if 400 <= status < 500 and status != 429:
        return InvalidInputError(
            f"the llama-server at {address} refuses a request", got=f"{status} {message}"
        )
    return ServiceUnavailableError(f"the llama-server at {address} failed", got=f"{status} {message}")


def _probability(entry: object) -> float:
    """A token's probability, normalised over the ``top_k`` best tokens."""
    own = _field(entry, "logprob")
    best = [_field(other, "logprob") for other in _list(entry, "top_logprobs", [])]
    if not all(_is_number(value) and value <= 1e-3 for value in (own, *best)):
        _malformed("logarithms of probabilities", [own, *best])
    total = math.fsum(math.exp(value) for value in best) or 1.0
    return min(1.0, math.exp(own) / total)


def _piece(piece: object) -> bytes:
    """The bytes of a piece: a string, or a list of bytes if they are not valid UTF-8."""
    if isinstance(piece, str):
        return piece.encode("utf-8", "surrogatepass")
    if not isinstance(piece, list) or not all(_is_id(value, 256) for value in piece):
        _malformed("a text or bytes", piece)
    return bytes(piece)


def _list(reply: object, name: str, default: list[Any] | None = None) -> list[Any]:
    value = reply.get(name, default) if isinstance(reply, dict) else None
    if not isinstance(value, list):
        _malformed(f"a list {name!r}", reply)
    return value


def _field(reply: object, name: str) -> Any:
    return reply.get(name) if isinstance(reply, dict) else None


def _is_id(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _malformed(expected: str, got: object) -> NoReturn:
    raise ProtocolError("a llama-server's reply is malformed", expected=expected, got=repr(got)[:200])
