"""``suffixsvc generate --explain``: every step of a generation in words.

step 3 at 41, behind '...name FROM customers'
  prompt-lookup  asked for 15: ' WHERE' 0.91 ' city' 0.62 ' =' 0.40
                 best 2 tokens in a batch of 3: expected to gain 0.77
  suffix         left alone: a query costs 0.7 tokens, more than its expected gain of 0.1
  sent           2 tokens of prompt-lookup in a batch of 3, 1.40 plain steps by the curve
  accepted       1 of 2: ' WHERE', not ' city'; the model's own ' country'
  took           33.0 ms, asking 0.2 ms: 2 tokens for 1.40 plain steps, 1.43 a plain step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import StepRecord
from suffixsvc_driver.drafts.events import Considered
from suffixsvc_driver.drafts.tree import is_chain, leaf_count
from suffixsvc_driver.policy.expected_gain import MIN_GAIN, StepParams, evaluate_prefixes

INTRODUCTION: Final = """\
Of each step: what every layer was asked for and drafted, with the probability that a token is accepted if all
before it were; what of that pays; what was sent, accepted and written. A plain step is one without drafts. A
draft pays where it is expected to bring more tokens than the plain steps that its batch costs brought so far.
A layer that drafts nothing knows nothing, or nothing that could pay.
"""

#: drafted tokens that are shown of a layer, and characters of the text before a step
_SHOWN: Final = 16
_BEFORE: Final = 24
_WORDS: Final = ("sent", "accepted", "took")

TokenBytes = Callable[[int], bytes]


class Explainer:
    """Of one generation, step by step.

    Args:
        token_bytes: what a token spells.
        layers: names of the layers, to line them up.
        prompt_ids: the prompt.
        replays: see :class:`suffixsvc_driver.targets.Target`.
        first_match: the policy does not weigh gains.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        layers: Sequence[str],
        prompt_ids: Sequence[int],
        *,
        replays: bool = False,
        first_match: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._width = max(map(len, (*_WORDS, *layers)))
        self._replays = replays
        self._first_match = first_match
        self._before = self._bytes(prompt_ids[-_BEFORE:])
        self._steps = 0

    def step(self, record: StepRecord, curve: CostCurve) -> str:
        """What happened in the next step, a line feed at the end.

        Args:
            curve: what steps cost when it was decided.
        """
        self._steps += 1
        position = record.start + 1
        lines = [f"step {self._steps} at {position}, behind {self._tail()}"]
        for considered in record.decision.considered:
            lines += self._considered(considered, record, curve)
        if not record.decision.considered:
            lines.append("  no layer to ask")
        cost = curve.cost(len(record.token_ids) + record.replayed)
        lines += [*self._sent(record, cost), *self._accepted(record), *self._took(record, cost)]
        self._before = (self._before + self._bytes(record.emitted))[-4 * _BEFORE :]
        return "\n".join(lines) + "\n"

    def _line(self, word: str, said: str) -> str:
        return f"  {word:<{self._width}}  {said}"

    # -- what was looked at

    def _considered(self, seen: Considered, record: StepRecord, curve: CostCurve) -> list[str]:
        if not seen.budget or seen.why:
            word = "" if seen.why in ("it failed", "notified, not queried") else "left alone: "
            asked = f"asked for {seen.budget}: " if seen.budget else ""
            return [self._line(seen.layer, f"{asked}{word}{seen.why}")]
        where = f" {seen.how}" if seen.how else ""
        if not seen.token_ids:
            return [self._line(seen.layer, f"asked for {seen.budget}{where}: nothing")]
        return [
            self._line(seen.layer, f"asked for {seen.budget}{where}: {self._candidates(seen)}"),
            self._line("", self._verdict(seen, record, curve)),
        ]

    def _candidates(self, seen: Considered) -> str:
        if not is_chain(seen.parents):
            return self._tree(
                seen.parents, lambda i: f"{self._quoted([seen.token_ids[i]])} {seen.probs[i]:.2f}"
            )
        pairs = zip(seen.token_ids, seen.probs, strict=True)
        shown = [f"{self._quoted([token])} {prob:.2f}" for token, prob in list(pairs)[:_SHOWN]]
        more = len(seen.token_ids) - len(shown)
        return " ".join(shown) + (f" and {more} more" if more else "")

    def _tree(self, parents: Sequence[int], node: Callable[[int], str]) -> str:
        """A token and what follows it; alternatives in brackets."""
        children: dict[int, list[int]] = {}
        for i, parent in enumerate(parents):
            children.setdefault(parent, []).append(i)
        shown = 0

        def below(at: int) -> str:
            nonlocal shown
            words = []
            while len(following := children.get(at, [])) == 1 and shown < _SHOWN:
                [at] = following
                shown += 1
                words.append(node(at))
            if shown >= _SHOWN and following:
                return " ".join([*words, "..."])
            branches = []
            for each in following:
                shown += 1
                branches.append(" ".join(filter(None, (node(each), below(each)))))
            return " ".join([*words, f"({' | '.join(branches)})"] if branches else words)

        return below(-1)

    def _verdict(self, seen: Considered, record: StepRecord, curve: CostCurve) -> str:
        if self._first_match:
            return "the first match: taken, whatever it costs"
        if seen.length:
            tokens = _count(seen.length, "token")
            of = "" if is_chain(record.decision.parents) else " of all answers so far"
            said = f"best {tokens}{of} in a batch of {seen.width}: expected to gain {seen.gain:.2f}"
            return said if seen.gain > MIN_GAIN else f"{said}, too little to count"
        if not is_chain(seen.parents):
            return "does not pay"
        rate = record.decision.rate
        step = StepParams(curve, rate, len(seen.probs), curve.max_width, record.replayed, self._replays)
        weighed = list(evaluate_prefixes(seen.probs, step))
        if not weighed:
            return "does not pay: no batch is wide enough"
        best = max(weighed, key=lambda each: each.gain)
        return (
            f"does not pay: {_count(best.length, 'token')} would bring {best.tokens:.2f}, and a batch of "
            f"{best.width} costs {best.cost:.2f} plain steps more, worth {rate * best.cost:.2f} "
            f"(at {rate:.2f} tokens a plain step)"
        )

    # -- what was done

    def _sent(self, record: StepRecord, cost: float) -> list[str]:
        sent, drafted = record.decision, record.decision.drafted
        again = f", {_count(record.replayed, 'token')} before it computed again" if record.replayed else ""
        if not drafted:
            return [self._line("sent", f"nothing: a plain step{again}")]
        of = f"{_count(drafted, 'token')} of {sent.layer}"
        if sent.continued_by:
            of = f"{_count(sent.continued_at, 'token')} of {sent.layer}, then "
            of += f"{drafted - sent.continued_at} of {sent.continued_by},"
        if sent.layers:
            whose = Counter(layer for layer in sent.layers[:drafted] if layer)
            of = " and ".join(f"{_count(n, 'token')} of {layer}" for layer, n in whose.items())
        if not is_chain(sent.parents):
            of += f", a tree of {leaf_count(sent.parents[:drafted])} leaves,"
        padding = f" ({sent.padding} of it padding)" if sent.padding else ""
        batch = f"in a batch of {len(record.token_ids)}{padding}{again}"
        return [self._line("sent", f"{of} {batch}, {cost:.2f} plain steps by the curve")]

    def _accepted(self, record: StepRecord) -> list[str]:
        drafted = record.decision.drafted
        accepted = record.agreed
        kept = min(accepted, len(record.emitted))
        own = record.emitted[kept:]
        wrote = f"the model's own {self._quoted(own)}" if own else "nothing of the model's own behind it"
        if not drafted:
            return [self._line("wrote", self._quoted(record.emitted))]
        said = f"{accepted} of {drafted}"
        if kept:
            said += f": {self._quoted(record.emitted[:kept])}"
        if accepted < drafted and is_chain(record.decision.parents):
            said += f"{',' if kept else ':'} not {self._quoted([record.token_ids[1 + accepted]])}"
        return [self._line("accepted", f"{said}; {wrote}")]

    def _took(self, record: StepRecord, cost: float) -> list[str]:
        asking = f", asking {record.query_seconds * 1e3:.1f} ms" if record.decision.considered else ""
        tokens = len(record.emitted)
        steps = "1 plain step" if cost == 1.0 else f"{cost:.2f} plain steps, {tokens / cost:.2f} a plain step"
        took = f"{record.target_seconds * 1e3:.1f} ms{asking}: {_count(tokens, 'token')} for {steps}"
        return [self._line("took", took)]

    # -- tokens as text

    def _tail(self) -> str:
        text = self._before.decode("utf-8", "replace").lstrip("\ufffd")
        return repr(("..." if len(text) > _BEFORE else "") + text[-_BEFORE:])

    def _quoted(self, token_ids: Sequence[int]) -> str:
        return repr(self._bytes(token_ids).decode("utf-8", "replace"))

    def _bytes(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(map(self._token_bytes, token_ids))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
