"""What goes into the driver's state machine and what comes out. Plain data, and JSON for traces.

    in                                      out
    Begin                                   AskLayer(layer, budget)   answer with LayerAnswer or LayerFailed
    LayerAnswer(layer, draft, seconds)      Verify(token_ids)         answer with Verified
    LayerFailed(layer, reason)              Finish(reason)            the end
    Verified(emitted, accepted, width)

Every event is answered with exactly one decision, and the same events always with the same ones.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from suffixsvc.types import Draft
from suffixsvc.types import Verified as Feedback
from suffixsvc_driver.content import ContentType

__all__ = [
    "AskLayer",
    "Begin",
    "Considered",
    "Decision",
    "Event",
    "Feedback",
    "Finish",
    "FinishReason",
    "LayerAnswer",
    "LayerFailed",
    "Verified",
    "Verify",
    "decision_to_json",
    "event_from_json",
    "event_to_json",
]


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    #: the model wrote an end-of-generation token, or the caller's stop rule held
    STOP = "stop"
    #: max_tokens were written
    LENGTH = "length"
    #: the target's context is full
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Begin:
    """A generation starts.

    Attributes:
        prompt_length: tokens of the prompt, >= 1.
        max_tokens: write at most this many.
        context_size: tokens the target can hold, prompt included.
        vocab_size: ids at or above it are junk.
        eog_ids: ids that end a generation.
        max_width: tokens the target can verify at once.
        replays: the target computes accepted tokens again where a draft was accepted in part.
        content: what kind of text it is about, for controllers that go by it.
    """

    prompt_length: int
    max_tokens: int
    context_size: int
    vocab_size: int
    eog_ids: frozenset[int] = frozenset()
    max_width: int = 1 << 20
    replays: bool = False
    content: ContentType = ContentType.GENERAL


@dataclass(frozen=True, slots=True, eq=False)
class LayerAnswer:
    """A layer's draft. Anything may be in it; what makes no sense is cut off.

    Attributes:
        layer: its name.
        draft: what it proposes.
        seconds: how long the question took.
    """

    layer: str
    draft: Draft
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerFailed:
    """A layer raised; it counts as an empty draft."""

    layer: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target made of a step.

    Attributes:
        emitted: the tokens written, in order: the accepted ones and one of the target's own, cut
            where the generation ended. Never empty.
        accepted: drafted tokens (padding included) the target agreed with, before any cut.
        width: tokens in the batch, the last real one included.
        stopped: the caller's stop rule held at the last emitted token.
        replay: tokens that the next batch computes again, in front of the newest one.
        seconds: what the step took; 0 where nobody measured it.
        content: what kind of text is being written; None = as before.
    """

    emitted: tuple[int, ...]
    accepted: int
    width: int
    stopped: bool = False
    replay: int = 0
    seconds: float = 0.0
    content: ContentType | None = None


Event = Begin | LayerAnswer | LayerFailed | Verified


@dataclass(frozen=True, slots=True)
class AskLayer:
    """Ask a layer for at most ``budget`` tokens; 0 only tells it what was written.

    ``verified`` is what the target really got in the last step, None before the first. ``after`` is a draft
    behind which the layer is to go on.
    """

    layer: str
    budget: int
    verified: Feedback | None = None
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Considered:
    """A layer in a step, as the driver saw it.

    Attributes:
        layer: its name.
        budget: tokens it was asked for; 0 = not asked for any.
        why: in a word, why it was left alone, or where its answer went on.
        token_ids: what it answered.
        probs: P(accepted | all before accepted) as the driver believes it.
        length, width, gain: the best prefix of it, the batch it takes, and the tokens that gains.
    """

    layer: str
    budget: int
    why: str = ""
    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    length: int = 0
    width: int = 1
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Verify:
    """Send the last real token and these to the target.

    Attributes:
        token_ids: drafted tokens, then ``padding`` tokens that only fill a cheaper width.
        sources: DraftSource numbers, NONE for padding.
        probs: P(accepted | all before accepted) as the driver believes it, 0 for padding.
        layer: whose draft it is; empty for a plain step.
        padding: how many of the tokens are padding.
        continued_by: the layer that went on behind the first one's draft; empty where none did.
        continued_at: tokens of the first layer then.
        considered: what was looked at before, for people.
        rate: tokens per unit cost so far, which a draft had to be worth: for people too.
    """

    token_ids: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    layer: str = ""
    padding: int = 0
    continued_by: str = ""
    continued_at: int = 0
    considered: tuple[Considered, ...] = ()
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The generation is over."""

    reason: FinishReason


Decision = AskLayer | Verify | Finish


def event_to_json(event: Event) -> dict[str, Any]:
    """Plain data that :func:`event_from_json` reads back."""
    data: dict[str, Any] = {"event": type(event).__name__}
    if isinstance(event, LayerAnswer):
        draft = {name: getattr(event.draft, name).tolist() for name in _DRAFT_DTYPES}
        return {**data, "layer": event.layer, "seconds": event.seconds, "draft": draft}
    data.update({f.name: getattr(event, f.name) for f in fields(event)})
    if isinstance(event, Begin):
        data["eog_ids"] = sorted(event.eog_ids)
    if isinstance(event, Verified):
        data["emitted"] = list(event.emitted)
    return data


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that :func:`event_to_json` wrote."""
    values = {k: v for k, v in data.items() if k != "event"}
    match data["event"]:
        case "Begin":
            content = ContentType(values.get("content", ContentType.GENERAL))
            return Begin(**{**values, "eog_ids": frozenset(values["eog_ids"]), "content": content})
        case "LayerFailed":
            return LayerFailed(**values)
        case "Verified":
            kind = values.get("content")
            content_now = None if kind is None else ContentType(kind)
            return Verified(**{**values, "emitted": tuple(values["emitted"]), "content": content_now})
        case _:
            arrays = {k: np.array(values["draft"][k], dtype=t) for k, t in _DRAFT_DTYPES.items()}
            return LayerAnswer(values["layer"], Draft(**arrays), values["seconds"])


_DRAFT_DTYPES: dict[str, Any] = {
    "token_ids": np.int32,
    "parents": np.int32,
    "probs": np.float32,
    "sources": np.uint8,
    "match_lens": np.int32,
}


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Plain data; probabilities keep six digits, which is what a golden trace compares."""
    data = asdict(decision)
    if isinstance(decision, Verify):
        data["probs"] = [round(p, 6) for p in decision.probs]
        data["token_ids"], data["sources"] = list(decision.token_ids), list(decision.sources)
        del data["considered"], data["rate"]
        if not decision.continued_by:
            del data["continued_by"], data["continued_at"]
    if isinstance(decision, AskLayer):
        if decision.verified is not None:
            data["verified"]["source"] = int(decision.verified.source)
        if not decision.after:
            del data["after"]
    return {"decision": type(decision).__name__, **data}
