"""Measured loss of drafting through text with a pair of vocabularies, on a few texts.

The measurement simulates a perfect draft model: after every token of every text it drafts the continuation,
in its own tokens. The loss is the part of it that the target would emit but does not find in the translated
draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.retokenizing.tokenizer import Cutter, TextTokenizer, piece_ends
from suffixsvc_driver.retokenizing.translating import Retokenizer

#: length of each draft, in tokens of the draft model
_DRAFTED: Final = 8
#: fraction of kept tokens from which drafting through text is useful
_ENOUGH: Final = 0.5

SAMPLE_TEXTS: Final = (
    'def total(prices: list[float], tax: float = 0.19) -> float:\n    """What the customer pays."""\n'
    "    net = sum(price for price in prices if price > 0)\n    return round(net * (1 + tax), 2)\n",
    "for (let i = 0; i < rows.length; i++) {\n\tif (rows[i].state !== 'open') continue;\n"
    "\tawait notify(rows[i].owner, `Ticket #${rows[i].id} is waiting`);\n}\n",
    "SELECT c.name, COUNT(*) AS orders, SUM(o.amount) AS revenue\nFROM customers c\n"
    "JOIN orders o ON o.customer_id = c.id\nWHERE o.created_at >= '2024-01-01'\nGROUP BY c.name\n"
    "HAVING SUM(o.amount) > 1500\nORDER BY revenue DESC LIMIT 10;",
    '{"tool": "search_flights", "arguments": {"from": "LIS", "to": "OSL", "date": "2025-03-14",\n'
    '  "passengers": [{"name": "Ana Sousa", "age": 34}], "max_price": 249.90, "direct": true}}',
    "The library opens at nine. Before that, the caretaker walks through the rooms, opens the windows and"
    " puts back what readers have left on the tables; it's quiet work, and he wouldn't want it otherwise.\n",
    "## What changed\n\n1. Orders are checked **before** they are stored.\n2. A failed check is logged, with"
    " its reason.\n\n- see `orders.py`, lines 120-148\n- nothing else was touched\n\n| step | ms |\n"
    "|---|---|\n| check | 1.7 |\n",
    "Grüße aus Zürich! Das Café schließt um 18 Uhr. 東京は今日も晴れです。 Цена: 1 250 ₽ 🙂\n",
)


@dataclass(frozen=True, slots=True)
class TextFit:
    """Result of the measurement.

    Attributes:
        texts: number of texts in the sample.
        whole: fraction of texts that round-trip through both tokenizers.
        kept_texts: fraction of texts whose drafts were all translated with the target's token boundaries.
        kept_tokens: fraction of the drafted target tokens that were.
        nothing: fraction of positions at which no draft is possible.
        token_ratio: tokens of the draft model per token of the target.
    """

    texts: int
    whole: float
    kept_texts: float
    kept_tokens: float
    nothing: float
    token_ratio: float

    @property
    def works(self) -> bool:
        """Whether drafting through text is useful for this pair."""
        return self.whole == 1.0 and self.kept_tokens >= _ENOUGH


def compare_texts(
    target: TextTokenizer, draft: TextTokenizer, texts: Sequence[str] = SAMPLE_TEXTS
) -> TextFit:
    """Measure a pair of vocabularies; takes a tenth of a second."""
    counts: Counter[str] = Counter()
    retokenizer = Retokenizer(target, draft)
    for text in texts:
        try:
            _try_text(text, Cutter(target), Cutter(draft), retokenizer, counts)
        except VocabularyMismatchError:
            continue
        counts["whole"] += 1
    n = max(1, len(texts))
    return TextFit(
        len(texts),
        counts["whole"] / n,
        counts["kept_texts"] / n,
        counts["kept"] / max(1, counts["due"]),
        counts["nothing"] / max(1, counts["places"]),
        counts["draft_tokens"] / max(1, counts["target_tokens"]),
    )


def _try_text(
    text: str, target: Cutter, draft: Cutter, retokenizer: Retokenizer, counts: Counter[str]
) -> None:
    data = text.encode()
    pieces = target.cut(text, True)
    tokens = [token for token, _ in pieces]
    wholly = draft.cut(text, True)
    ends = piece_ends(wholly)
    lost = 0
    written = 0
    target_ends = piece_ends(pieces)
    for count, (_, size) in enumerate(pieces[:-1], 1):
        written += size
        if written < len(data) and data[written] & 0xC0 == 0x80:  # inside a character
            continue
        if written in ends:
            drafted = wholly[ends[written] :][:_DRAFTED]
        else:
            drafted = draft.cut(data[written:].decode(), False)[:_DRAFTED]
        reached = written + sum(size for _, size in drafted)
        due = sum(1 for end in target_ends if written < end <= reached)
        retokenizer.follow(tokens[:count])
        came, _ = retokenizer.translate([token for token, _ in drafted], [1.0] * len(drafted))
        kept = common_prefix(came, tokens[count : count + due])
        counts["places"] += 1
        counts["nothing"] += not came
        counts["due"] += due
        counts["kept"] += kept
        lost += due - kept
    counts["kept_texts"] += lost == 0
    counts["target_tokens"] += len(pieces)
    counts["draft_tokens"] += len(wholly)
