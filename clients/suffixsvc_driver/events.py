"""What goes into the driver's state machine and what comes out. Plain data, and JSON for traces.

    in                                      out
    Begin                                   AskLayer(layer, budget)   answer with LayerAnswer or LayerFailed
    LayerAnswer(layer, draft, seconds)      Verify(token_ids)         answer with Verified
    LayerFailed(layer, reason)              Finish(reason)            the end
    Verified(emitted, accepted, width)

A generation that shares its batches with others (``Begin.paced``) is told when a step begins and what its
draft may take of the batch, in between:

    Begin, Verified                         Wait                      answer with Next
    Next(beside, room)                      AskLayer ... Propose      answer with Grant
    Grant(length, padding, beside)          Verify

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
    "Grant",
    "LayerAnswer",
    "LayerFailed",
    "Next",
    "Propose",
    "Verified",
    "Verify",
    "Wait",
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
        max_branches: leaves that a drafted tree may have; 1: the target takes chains only.
        paced: it shares its batches with others, who say when a step begins (:class:`Next`) and how much of
            its draft it may send (:class:`Grant`).
    """

    prompt_length: int
    max_tokens: int
    context_size: int
    vocab_size: int
    eog_ids: frozenset[int] = frozenset()
    max_width: int = 1 << 20
    replays: bool = False
    content: ContentType = ContentType.GENERAL
    max_branches: int = 1
    paced: bool = False


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
        seconds: what the step took; 0 where it was not measured. Not used in a paced generation.
        content: what kind of text is being written; None = as before.
    """

    emitted: tuple[int, ...]
    accepted: int
    width: int
    stopped: bool = False
    replay: int = 0
    seconds: float = 0.0
    content: ContentType | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The next step of a paced generation begins.

    Attributes:
        beside: tokens that the others will have in the batch at least.
        room: tokens with logits that this one may have in it at most, its newest one included.
    """

    beside: int
    room: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What a paced generation may send.

    Attributes:
        length: drafted tokens, of those proposed the first ones.
        padding: tokens behind them that only fill a cheaper width.
        beside: tokens that the others have in the batch.
    """

    length: int
    padding: int
    beside: int


Event = Begin | LayerAnswer | LayerFailed | Verified | Next | Grant


@dataclass(frozen=True, slots=True)
class AskLayer:
    """Ask a layer for at most ``budget`` tokens; 0 only tells it what was written.

    ``verified`` is what the target really got in the last step, None before the first. ``after`` is a draft
    behind which the layer is to go on, ``suggested`` what others believe to follow that.
    """

    layer: str
    budget: int
    verified: Feedback | None = None
    after: tuple[int, ...] = ()
    suggested: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Considered:
    """A layer in a step, as the driver saw it.

    Attributes:
        layer: its name.
        budget: tokens it was asked for; 0 = not asked for any.
        why: in a word, why it was left alone.
        token_ids: what it answered.
        probs: P(accepted | all before accepted) as the driver believes it.
        length, width, gain: the best prefix of it, the batch it takes, and the tokens that gains. Where
            drafts are trees: of the tree of all answers so far.
        parents: of a tree, of each token.
        how: in words, where its answer went on, or what was suggested to it.
    """

    layer: str
    budget: int
    why: str = ""
    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    length: int = 0
    width: int = 1
    gain: float = 0.0
    parents: tuple[int, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verify:
    """Send the last real token and these to the target.

    Attributes:
        token_ids: drafted tokens, then ``padding`` tokens that only fill a cheaper width.
        sources: DraftSource numbers, NONE for padding.
        probs: P(accepted | parent accepted) as the driver believes it, 0 for padding.
        layer: whose draft it is, of several the first token's; empty for a plain step.
        padding: how many of the tokens are padding.
        continued_by: the layer that went on behind the first one's draft; empty where none did.
        continued_at: tokens of the first layer then.
        considered: what was looked at before, for people.
        rate: tokens per unit cost so far, which a draft had to be worth: for people too.
        parents: of a tree, the index of each token's parent, -1 for the last real token; empty for a chain.
        layers: whose each token is, where a draft was put together from several layers' answers token by
            token.
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
    parents: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing, until the next step begins (paced generations)."""


@dataclass(frozen=True, slots=True)
class Propose:
    """What a paced generation would send, if the batch has room for it.

    Attributes:
        gains: tokens that each drafted token adds, as far as is believed. Falling, but for generations that
            replay.
        forced: as many of them as there is room for go out, whatever they gain (first-match).
    """

    gains: tuple[float, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The generation is over."""

    reason: FinishReason


Decision = AskLayer | Verify | Finish | Wait | Propose


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
        case "Next":
            return Next(**values)
        case "Grant":
            return Grant(**values)
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
        for name in ("parents", "layers"):
            if data[name]:
                data[name] = list(data[name])
            else:
                del data[name]
    if isinstance(decision, Propose):
        data["gains"] = [round(gain, 6) for gain in decision.gains]
    if isinstance(decision, AskLayer):
        if decision.verified is not None:
            data["verified"]["source"] = int(decision.verified.source)
        for name in ("after", "suggested"):
            if data[name]:
                data[name] = list(data[name])
            else:
                del data[name]
    return {"decision": type(decision).__name__, **data}
