"""What ``--explain`` says of steps that a short run does not show, and on targets of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc_cli.generate.explain import Explainer
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import StepRecord
from suffixsvc_driver.drafts.events import Considered, Verify
from suffixsvc_driver.profile.settings_file import Settings, TargetSettings, write_settings
from support.generating import Generating, generating
from support.tiny_gguf import chain_of, write_tiny_chain
from support.tiny_kinds import KINDS

CURVE = CostCurve((0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5))
LAYERS = ("prompt-lookup", "draft-model")


def spell(token: int) -> bytes:
    return bytes([token])


def record(decision: Verify, emitted: bytes, accepted: int = 0, replayed: int = 0) -> StepRecord:
    """A step behind "x"."""
    path = decision.path(tuple(emitted), accepted)
    return StepRecord(
        4,
        (ord("x"), *decision.token_ids),
        accepted,
        tuple(emitted),
        path,
        decision.origins(path, len(emitted)),
        0.001,
        0.02,
        decision,
        replayed,
    )


def told(step: StepRecord, *, replays: bool = False, first_match: bool = False) -> list[str]:
    """The lines about a step, without those that every one has."""
    explainer = Explainer(spell, LAYERS, tuple(b"prompx"), replays=replays, first_match=first_match)
    head, *lines = explainer.step(step, CURVE).splitlines()
    assert head == "step 1 at 5, behind 'prompx'"
    assert all(line.startswith("  ") for line in lines)
    return [" ".join(line.split()) for line in lines]


def test_a_draft_continued_by_another_layer() -> None:
    looked_at = (
        Considered("prompt-lookup", 5, "", tuple(b"ab"), (0.9, 0.9), 2, 3, 0.7),
        Considered("draft-model", 3, "", tuple(b"abc"), (0.9, 0.9, 0.8), 3, 5, 0.8, how="after 2 tokens"),
    )
    sent = Verify(
        tuple(b"abcc"),
        (5, 5, 4, 0),
        (0.9, 0.9, 0.8, 0.0),
        "prompt-lookup",
        1,
        "draft-model",
        2,
        looked_at,
        1.2,
    )
    lines = told(record(sent, b"aby", accepted=2, replayed=1), replays=True)
    assert "draft-model asked for 3 after 2 tokens: 'a' 0.90 'b' 0.90 'c' 0.80" in lines
    assert lines[-3:] == [
        "sent 2 tokens of prompt-lookup, then 1 of draft-model, in a batch of 5 (1 of it padding), "
        "1 token before it computed again, 3.50 plain steps by the curve",
        "accepted 2 of 3: 'ab', not 'c'; the model's own 'y'",
        "took 20.0 ms, asking 1.0 ms: 3 tokens for 3.50 plain steps, 0.86 a plain step",
    ]


def test_accepted_padding_is_the_models_own() -> None:
    chain = Verify(tuple(b"abb"), (5, 5, 0), (0.9, 0.9, 0.0), "prompt-lookup", 1)
    lines = told(record(chain, b"abby", accepted=3))
    assert "accepted 2 of 2: 'ab'; the model's own 'by'" in lines
    tree = Verify(
        tuple(b"abcc"), (5, 5, 5, 0), (0.8, 0.7, 0.2, 0.0), "prompt-lookup", 1, parents=(-1, 0, -1, 2)
    )
    lines = told(record(tree, b"ccy", accepted=2))
    assert "accepted 1 of 3: 'c'; the model's own 'cy'" in lines


def test_a_tree() -> None:
    """ "a", then "b" or "cd"; two layers agree on the first."""
    looked_at = (
        Considered("prompt-lookup", 5, "", tuple(b"ab"), (0.9, 0.6), 2, 3, 0.7),
        Considered(
            "draft-model", 5, "", tuple(b"acde"), (0.8, 0.4, 0.9, 0.2), 4, 5, 0.9, (-1, 0, 1, 1)
        ),
        Considered("draft-model", 5, "", tuple(b"yz"), (0.1, 0.1), parents=(-1, -1)),
    )  # fmt: skip
    sent = Verify(
        tuple(b"abcd"), (5, 5, 4, 4), (0.9, 0.6, 0.4, 0.9), "prompt-lookup", considered=looked_at,
        parents=(-1, 0, 0, 2), layers=("prompt-lookup",) * 2 + ("draft-model",) * 2,
    )  # fmt: skip
    lines = told(record(sent, b"acx", accepted=2))
    assert lines[:-1] == [
        "prompt-lookup asked for 5: 'a' 0.90 'b' 0.60",
        "best 2 tokens of all answers so far in a batch of 3: expected to gain 0.70",
        "draft-model asked for 5: 'a' 0.80 'c' 0.40 ('d' 0.90 | 'e' 0.20)",
        "best 4 tokens of all answers so far in a batch of 5: expected to gain 0.90",
        "draft-model asked for 5: ('y' 0.10 | 'z' 0.10)",
        "does not pay",
        "sent 2 tokens of prompt-lookup and 2 tokens of draft-model, a tree of 2 leaves, in a batch of 5, "
        "3.00 plain steps by the curve",
        "accepted 2 of 4: 'ac'; the model's own 'x'",
    ]


def test_why_nothing_was_drafted() -> None:
    looked_at = (
        Considered("prompt-lookup", 5, "", tuple(b"ab"), (0.4, 0.9)),
        Considered("suffix", 5),
        Considered("draft-model", 0, "its tokens cost more than they would gain"),
    )
    lines = told(record(Verify(considered=looked_at, rate=1.5), b"y"))
    assert lines == [
        "prompt-lookup asked for 5: 'a' 0.40 'b' 0.90",
        "does not pay: 1 token would bring 0.40, and a batch of 2 costs 0.50 plain steps more, worth 0.75 "
        "(at 1.50 tokens a plain step)",
        "suffix asked for 5: nothing",
        "draft-model left alone: its tokens cost more than they would gain",
        "sent nothing: a plain step",
        "wrote 'y'",
        "took 20.0 ms, asking 1.0 ms: 1 token for 1 plain step",
    ]


def test_failures_and_layers_that_are_only_notified() -> None:
    looked_at = (
        Considered("prompt-lookup", 0, "it failed"),
        Considered("suffix", 0, "notified, not queried"),
        Considered("draft-model", 0, "2 tokens are no match"),
    )
    lines = told(record(Verify(considered=looked_at), b"y"), first_match=True)
    assert lines[:3] == [
        "prompt-lookup it failed",
        "suffix notified, not queried",
        "draft-model left alone: 2 tokens are no match",
    ]
    assert told(record(Verify(), b"y"))[0] == "no layer to ask"


def test_a_first_match() -> None:
    looked_at = (Considered("prompt-lookup", 3, "", tuple(b"abc"), (0.1, 0.1, 0.1), 3, 4),)
    sent = Verify(tuple(b"abc"), (5,) * 3, (0.1,) * 3, "prompt-lookup", considered=looked_at)
    lines = told(record(sent, b"abc", accepted=3), first_match=True)
    assert "the first match: taken, whatever it costs" in lines
    assert "accepted 3 of 3: 'abc'; nothing of the model's own behind it" in lines


def test_long_drafts_and_long_texts_are_shown_in_part() -> None:
    many = Considered("prompt-lookup", 40, "", tuple(b"a" * 30), (0.9,) * 30, 5, 6, 1.0)
    explainer = Explainer(spell, LAYERS, tuple(b"0123456789" * 9))
    said = explainer.step(record(Verify(considered=(many,)), b"y"), CURVE)
    assert "and 14 more" in said
    assert said.startswith("step 1 at 5, behind '678901234567890123456789'\n")
    second = explainer.step(record(Verify(), b"z"), CURVE)
    assert second.startswith("step 2 at 5, behind '...78901234567890123456789y'\n")


# -- real targets


@pytest.fixture
def generate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Generating]:
    yield from generating(capsys, monkeypatch, tmp_path / "home")


@pytest.mark.parametrize("kind", [*KINDS, "mamba with snapshots"])
def test_explaining_changes_nothing_on_any_kind_of_target(
    generate: Generating, kind: str, tmp_path: Path
) -> None:
    """Arithmetic that does not depend on the width: the same text to the last byte, also in a chat, where a
    recurrent state can only go on."""
    name = kind.partition(" ")[0]
    model = KINDS[name](tmp_path / "m.gguf", seed=3)
    exact = TargetSettings(flash_attention=False, kv_type="f32", max_width=32, snapshots=kind != name)
    write_settings(tmp_path / "s.toml", Settings(target=exact))
    generate.target = exact
    run = (model, "--settings", tmp_path / "s.toml", "--max-tokens", 40)
    prompt = ("tell me more, and tell me more, and", "--raw")
    plain = generate(*run, *prompt, "--layers", "none")
    explained = generate(*run, *prompt, "--explain", "--policy", "first-match")
    assert plain.code == explained.code == 0
    assert explained.out.endswith("\n" + plain.out)
    assert " of prompt-lookup in a batch of " in explained.out
    chats = [
        generate(*run, "--chat", "--json", *more, stdin="more, and more\nmore, and more\n").turns
        for more in (("--layers", "none"), ())
    ]
    assert [turn["token_ids"] for turn in chats[0]] == [turn["token_ids"] for turn in chats[1]]
    for chat in chats:
        assert chat[1]["prefill"]["reused"] >= len(chat[0]["prompt_token_ids"])


def test_trees_are_drafted_where_the_settings_say_so_and_can_be_explained(
    generate: Generating, tmp_path: Path
) -> None:
    """What came after "ab" differed: both ways go in one batch, and the text stays the same."""
    model = write_tiny_chain(tmp_path / "m.gguf", chain_of("abcdefgh"), context=1 << 12)
    exact = TargetSettings(flash_attention=False, kv_type="f32", max_width=16, branches=3)
    write_settings(tmp_path / "s.toml", Settings(target=exact))
    generate.target = exact
    with SuffixCache(tmp_path / "data") as cache:
        namespace = cache.namespace("n")
        for text in (b"xabcdefghab", b"yabqrsabqrs") * 2:
            namespace.add_output(list(text), prompt_token_ids=[1])
    run = (model, "ab", "--raw", "--max-tokens", 24, "--settings", tmp_path / "s.toml")
    data = ("--data", tmp_path / "data", "--namespace", "n")
    plain, explained = generate(*run, "--layers", "none"), generate(*run, *data, "--explain")
    assert plain.code == explained.code == 0
    assert explained.out.endswith("\n" + plain.out)
    assert " leaves, in a batch of " in explained.out
