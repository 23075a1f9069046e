"""Viewer: what one open page has been sent, and what is new for it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final

from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc_openai.engine.engine import Engine
from suffixsvc_openai.engine.memory import Stored
from suffixsvc_openai.live.answers import KEPT_TOKENS, WAITING, Shown, Vocabulary
from suffixsvc_openai.live.feed import KEPT_ANSWERS, Feed
from suffixsvc_openai.live.rates import KEPT_SECONDS

#: open pages of all principals, and of one
MAX_VIEWERS: Final = 16
MAX_VIEWERS_OF_ONE: Final = 8
#: seconds between two messages of numbers
_NUMBERS_SECONDS: Final = 0.5
#: seconds between two reads of the stored outputs
_STORED_SECONDS: Final = 5.0


class ViewerLimit:
    """Counts viewers. For one event loop."""

    def __init__(self) -> None:
        self._viewers: Counter[str] = Counter()

    def add(self, principal: str) -> None:
        """Count a viewer.

        Raises:
            LimitExceededError: there are too many.
        """
        count, own = self._viewers.total(), self._viewers[principal]
        if count >= MAX_VIEWERS or own >= MAX_VIEWERS_OF_ONE:
            raise LimitExceededError(
                "too many live pages are open",
                expected=f"at most {MAX_VIEWERS} viewers, {MAX_VIEWERS_OF_ONE} of one principal",
                got=f"{count} viewers, {own} of this principal",
                remedy="Close one.",
            )
        self._viewers[principal] += 1

    def remove(self, principal: str) -> None:
        """Count one viewer less."""
        self._viewers[principal] -= 1


@dataclass(slots=True)
class _Sent:
    """What was sent of an answer."""

    read: int
    state: str = ""
    tokens: int = -1
    ended: bool = False


class Viewer:
    """The state of one open page. For one event loop; :meth:`close` it at the end.

    Args:
        feed: where the answers are.
        engine: its load and stored outputs.
        principal: whose answers and namespaces are sent.
        model: id of the model.
        sees_all: whether the numbers, which are those of all principals, are sent at this moment.
    """

    def __init__(
        self,
        feed: Feed,
        engine: Engine,
        principal: str,
        model: str,
        sees_all: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sees_all = sees_all
        self._feed, self._engine, self._principal, self._model = feed, engine, principal, model
        self._vocabulary = Vocabulary(engine.texts.__getitem__, engine.eog_ids)
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, _Sent] = {}
        self._ends = -1
        self._numbers: dict[str, Any] = {}
        self._numbers_at = self._stored_at = float("-inf")
        self._second, self._seconds = -1, list[tuple[Any, ...]]()
        self._stored: list[Stored] | None = None
        self._reading: asyncio.Task[list[Stored]] | None = None

    def begin(self) -> dict[str, Any]:
        """Return the first message."""
        engine = self._engine
        return {
            "server": {
                "model": self._model,
                "principal": self._principal,
                "lanes": engine.lanes,
                "queue": engine.queue_size,
                "context": engine.context_size,
                "kept_answers": KEPT_ANSWERS,
                "kept_tokens": KEPT_TOKENS,
                "kept_seconds": KEPT_SECONDS,
                "numbers": self._sees_all(),
            }
        }

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the messages for what has changed since the last call."""
        self._feed.refresh(self._vocabulary)
        running, ended, ends = self._feed.of(self._principal)
        lost = self._lost(ended, ends)
        if lost:
            yield {"lost": lost}
        gone = self._forget({shown.number for shown in (*ended, *running)})
        if gone:
            yield {"gone": gone}
        answers = [
            found
            for shown in (*ended, *running)
            if shown.state != WAITING and (found := self._change(shown)) is not None
        ]
        if answers:
            yield {"answers": answers}
        now = self._loop.time()
        if now - self._numbers_at >= _NUMBERS_SECONDS:
            self._numbers_at = now
            waiting = sum(shown.state == WAITING for shown in running)
            if self._sees_all():
                yield from self._changed_numbers(waiting)
        yield from self._changed_stored(now)

    def close(self) -> None:
        """End what still runs for the viewer."""
        if self._reading is not None:
            self._reading.cancel()

    def _lost(self, ended: list[Shown], ends: int) -> int:
        """Return the number of answers whose end was not sent and that are no longer kept."""
        before, self._ends = self._ends, ends
        first = ended[0].end_number if ended else ends + 1
        return 0 if before < 0 else max(0, first - 1 - before)

    def _forget(self, known: set[int]) -> list[int]:
        """Forget the answers that are no longer kept; return those of them whose end was not sent."""
        forgotten = {number: self._sent.pop(number) for number in self._sent.keys() - known}
        return sorted(number for number, sent in forgotten.items() if not sent.ended)

    def _change(self, shown: Shown) -> dict[str, Any] | None:
        """Return what is new of an answer; None if nothing is."""
        sent = self._sent.get(shown.number)
        found: dict[str, Any] = {"id": shown.number}
        if sent is None:
            found = shown.describe(self._vocabulary)
            sent = self._sent[shown.number] = _Sent(0)
        state, tokens, read = shown.state, shown.tokens, shown.read
        if (state, tokens, read) == (sent.state, sent.tokens, sent.read):
            return None
        if read > sent.read:
            first = read - len(shown.pieces)
            if first > sent.read:
                found["skipped"] = first - sent.read
            pieces = itertools.islice(shown.pieces, max(0, sent.read - first), None)
            found["text"] = [[source, text] for source, text in pieces]
        found |= {"state": state, "tokens": tokens}
        if shown.end is not None:
            found["end"], sent.ended = shown.end, True
        sent.state, sent.tokens, sent.read = state, tokens, read
        return found

    def _changed_numbers(self, own_waiting: int) -> Iterator[dict[str, Any]]:
        total, completed, failed = self._feed.numbers()
        load = self._engine.load
        numbers = {
            **total.to_json(),
            "completed": completed,
            "failed": failed,
            "running": load.running,
            "waiting": load.waiting,
            "own_waiting": own_waiting,
            "kv": self._engine.kv_use,
        }
        seconds = [astuple(each) for each in self._feed.rates.since(self._second)]
        if numbers == self._numbers and seconds == self._seconds:
            return
        self._numbers, self._seconds = numbers, seconds[-1:]
        if seconds:  # the last one may grow: it is sent again
            self._second = seconds[-1][0] - 1
        yield {"numbers": {**numbers, "seconds": seconds}}

    def _changed_stored(self, now: float) -> Iterator[dict[str, Any]]:
        """Read the stored outputs meanwhile, because a service may not answer."""
        task = self._reading
        if task is None:
            if now - self._stored_at >= _STORED_SECONDS:
                self._stored_at = now
                self._reading = self._loop.create_task(self._engine.stored(self._principal))
            return
        if not task.done():
            return
        self._reading = None
        try:
            stored = task.result()
        except SuffixError as error:
            self._stored = None
            yield {"stored_error": str(error)}
            return
        if stored != self._stored:
            self._stored = stored
            yield {"stored": [astuple(each) for each in stored]}
