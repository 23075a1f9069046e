"""Drafting through text, over a real socket: the target's text stays its own, and drafts are accepted."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc.types import DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.layers.retokenized import RetokenizedLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from support.other_vocabularies import CYCLE, PAIRS, write_ascii_llama, write_cycle
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import SPECIAL, byte_texts

PATIENT = 300.0
CURVE = CostCurve.linear(0.05, 32)
FIRST_MATCH = DriverConfig(policy="first-match", min_match_tokens=1)
SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)


@contextmanager
def worker(path: Path, settings: ContextSettings = SETTINGS) -> Iterator[DraftWorkerClient]:
    engine = DraftEngine(path, settings)
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        server = DraftWorkerServer(engine, f"unix:{folder}/s", WorkerSettings(busy_after_seconds=PATIENT))
        server.start()
        with DraftWorkerClient(server.address) as client:
            yield client
        server.stop()
    engine.close()


@contextmanager
def through_text(target: LlamaTarget, draft: Path, **options: float) -> Iterator[RetokenizedLayer]:
    with worker(draft) as client, LlamaModel(draft, vocab_only=True) as model:
        tokenizers = LlamaTokenizer(target.model), LlamaTokenizer(model)
        layer = RetokenizedLayer(client, *tokenizers, p_min=0.0, timeout_seconds=PATIENT, **options)  # type: ignore[arg-type] # numbers
        yield layer
        layer.close()


def test_a_vocabulary_in_another_order(tmp_path: Path) -> None:
    """The same model in other ids: everything is accepted, and nothing but text connects the two."""
    order = list(range(len([*byte_texts(), *SPECIAL])))
    random.Random(5).shuffle(order)
    draft = write_ascii_llama(tmp_path / "draft.gguf", order)
    with LlamaTarget(write_ascii_llama(tmp_path / "target.gguf"), WIDTH_INDEPENDENT) as target:
        prompt = target.model.tokenize("a question:")
        plain = generate(target, prompt, max_tokens=60)
        assert len(plain.token_ids) == 60
        with worker(draft) as client, pytest.raises(VocabularyMismatchError):
            DraftModelLayer(client, target.model.vocabulary)
        with through_text(target, draft) as layer:
            result = generate(target, prompt, FIRST_MATCH, [layer], max_tokens=60, curve=CURVE)
            assert result.token_ids == plain.token_ids
            assert result.stats.acceptance_rate == 1.0
            assert result.stats.mat > 4
            assert result.stats.evidence["draft-model"].output_tokens == result.stats.accepted
            assert layer.session.late == 0
            # the next call of the same agent: what both prompts share stays on the worker
            longer = [*prompt, *plain.token_ids[:20], *b" more"]
            again = generate(target, longer, FIRST_MATCH, [layer], max_tokens=20, curve=CURVE)
            assert again.token_ids == generate(target, longer, max_tokens=20).token_ids
            assert again.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("coarser", ["target", "draft"])
def test_longer_and_shorter_tokens(tmp_path: Path, coarser: str) -> None:
    """One of the two writes two letters in a token where the other writes one."""
    of_target, of_draft = (PAIRS, ()) if coarser == "target" else ((), PAIRS)
    path = write_cycle(tmp_path / "target.gguf", of_target)
    draft = write_cycle(tmp_path / "draft.gguf", of_draft, add_bos=True)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target, through_text(target, draft) as layer:
        prompt = target.model.tokenize("wxyz")
        plain = generate(target, prompt, max_tokens=50)
        written = target.model.detokenize([*prompt, *plain.token_ids])
        assert written in 4 * CYCLE
        result = generate(target, prompt, FIRST_MATCH, [layer], max_tokens=50, curve=CURVE)
        assert result.token_ids == plain.token_ids
        assert result.stats.mat > 4
        # where a pair was cut off at the end of a draft, its first letter is another token
        assert result.stats.acceptance_rate > (0.85 if coarser == "target" else 0.99)
        layer.begin(prompt, 0.0)
        assert len(layer.draft([], QueryLayer("x", 6))) == 6, "budgets are in the target's tokens"
        expected = layer.description.seconds_per_token * layer.fit.token_ratio
        assert layer.spec.seconds_per_token == expected


def test_it_continues_another_layers_draft(tmp_path: Path) -> None:
    path = write_cycle(tmp_path / "target.gguf")
    draft = write_cycle(tmp_path / "draft.gguf", PAIRS)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target, through_text(target, draft) as layer:
        assert layer.spec.can_continue
        layer.begin(list(b"abc"), 0.0)
        continued = layer.draft([], QueryLayer("x", 4, after=tuple(b"de")))
        assert bytes(continued.token_ids.tolist()) == b"fghi"
        assert set(continued.sources.tolist()) == {DraftSource.DRAFT_MODEL}
        wrong = layer.draft([], QueryLayer("x", 4, after=tuple(b"7")))
        assert bytes(wrong.token_ids.tolist()) == b"89ab"
        assert bytes(layer.draft(list(b"d"), QueryLayer("x", 4)).token_ids.tolist()) == b"efgh", (
            "they never came"
        )


def test_whatever_goes_wrong_is_an_empty_draft(tmp_path: Path) -> None:
    path = write_cycle(tmp_path / "target.gguf")
    draft = write_cycle(tmp_path / "draft.gguf", PAIRS)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target, through_text(target, draft) as layer:
        for prompt in ([], list(b"ab") * 600):  # nothing, and more than its context holds
            layer.begin(prompt, 0.0)
            assert len(layer.draft([], QueryLayer("x", 4))) == 0
        assert layer.session.last_error is None, "what cannot be held is not sent"
        layer.begin([*b"a", 0xE6, 0xBC], 0.0)
        assert len(layer.draft([], QueryLayer("x", 4))) == 0, "it does not go on as this character does"
        layer.begin([*b"a", 0xE6, 0xBC], 0.0)
        failing = [*b"abc", target.vocab_size + 7]
        layer.begin(failing, 0.0)
        prompt = list(b"xyz")
        plain = generate(target, prompt, max_tokens=20)
        with worker(draft) as gone:
            lost = RetokenizedLayer(
                gone, layer_tokenizer(path), layer_tokenizer(draft), timeout_seconds=0.2, fit=layer.fit
            )
        result = generate(target, prompt, FIRST_MATCH, [lost], max_tokens=20, curve=CURVE)
        assert result.token_ids == plain.token_ids
        assert result.stats.accepted == 0
        lost.close()


def layer_tokenizer(path: Path) -> LlamaTokenizer:
    return LlamaTokenizer(LlamaModel(path, vocab_only=True))


def test_what_cannot_draft_through_text_is_refused(tmp_path: Path) -> None:
    draft = write_cycle(tmp_path / "draft.gguf", PAIRS)
    tokenizer = layer_tokenizer(draft)

    class Shouting(LlamaTokenizer):
        """Knows no small letters."""

        def encode(self, text: str, begins: bool) -> list[int]:
            return super().encode(text.upper(), begins)

    with worker(draft) as client, LlamaModel(draft, vocab_only=True) as model:
        with pytest.raises(VocabularyMismatchError, match="texts do not round-trip between") as caught:
            RetokenizedLayer(client, Shouting(model), tokenizer)
        assert caught.value.rule == "round-trip"
        other = layer_tokenizer(write_cycle(tmp_path / "other.gguf"))
        with pytest.raises(VocabularyMismatchError, match=r"rule 'size'|rule 'token-text'"):
            RetokenizedLayer(client, tokenizer, other)


@pytest.mark.model
def test_a_real_model_through_text_drafts_what_it_drafts_without(real_model: Path) -> None:
    """Two workers that are asked the same, one of them through text: the same answers, bit for bit."""
    settings = ContextSettings(context_size=512, slots=2, threads=1, max_width=1)
    with (
        worker(real_model, settings) as one,
        worker(real_model, settings) as other,
        LlamaModel(real_model, vocab_only=True) as model,
    ):
        tokenizer = LlamaTokenizer(model)
        plain = DraftModelLayer(one, model.vocabulary, timeout_seconds=PATIENT)
        through = RetokenizedLayer(other, tokenizer, tokenizer, timeout_seconds=PATIENT)
        chat = model.chat([{"role": "user", "content": "Write a Python function that adds two numbers."}])
        answer = "Here is one:\n\n```python\ndef add(a, b):\n    return a + b\n```\n<|im_end|>"
        written = model.tokenize(answer)
        for layer in (plain, through):
            layer.begin(model.tokenize(chat), 0.0)
        drafted = 0
        for start, at in itertools.pairwise((0, 0, 1, 5, 9, 13, 20, len(written) - 1)):
            first, second = (layer.draft(written[start:at], QueryLayer("x", 6)) for layer in (plain, through))
            assert second.token_ids.tolist() == first.token_ids.tolist(), at
            assert second.probs.tolist() == first.probs.tolist(), at
            drafted += len(first)
        assert drafted > 15
        plain.close()
        through.close()
