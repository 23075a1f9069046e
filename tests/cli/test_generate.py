"""``suffixsvc generate``: texts, chats, what it shows, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suffixsvc_driver.live_curve import LiveCurve
from support.generating import Generating, Terminal, generating, process
from support.serving import PATIENCE_S, eventually
from support.tiny_gguf import SPECIAL, chain_of, write_tiny_chain

from suffixsvc import SuffixCache
from suffixsvc.cli.generate_show import ORIGINS
from suffixsvc.types import DraftSource, NewOutput

CYCLE = "abcdefgh\n"
TURN_END = 256 + SPECIAL.index("<|im_end|>")
GOLDEN = Path(__file__).parents[1] / "golden" / "cli" / "generate_explain.txt"
#: a prompt of which the model writes the end otherwise than it began
PROMPT = ("abcabcab", "--raw", "--max-tokens", 30)


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the same line again and again."""
    return write_tiny_chain(tmp_path_factory.mktemp("cycle") / "cycle.gguf", chain_of(CYCLE), context=1 << 15)


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers "ok" to everything."""
    follows = {ord("\n"): ord("o"), ord("o"): ord("k"), ord("k"): TURN_END}
    return write_tiny_chain(tmp_path_factory.mktemp("brief") / "brief.gguf", follows)


@pytest.fixture
def generate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Generating]:
    yield from generating(capsys, monkeypatch, tmp_path / "home")


@pytest.fixture
def kept_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned of this machine's speed: what is said is the same everywhere."""
    monkeypatch.setattr(LiveCurve, "observe", lambda curve, width, seconds, base=1: None)


def written(tokens: int) -> str:
    """What the cycle writes behind "ab"."""
    return (CYCLE[2:] + CYCLE * tokens)[:tokens]


# -- a text


def test_the_text_is_alone_on_stdout(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT)
    assert ran.code == 0
    assert ran.out == written(30) + "\n"
    for said in (
        "30 tokens, ",
        "(MAT)",
        "as many tokens as were asked for",
        "from: the model itself",
        "prompt-lookup",
        "kind of evidence",
        "expected by the cost curve; ",
    ):
        assert said in ran.err
    assert "drafted by" not in ran.err, "there is nothing to explain where nothing is coloured"


@pytest.mark.parametrize("way", ["--prompt", "--prompt-file", "-", "stdin"])
def test_ways_to_give_a_prompt(generate: Generating, cycle: Path, tmp_path: Path, way: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("ab\n")
    given: dict[str, tuple[object, ...]] = {
        "--prompt": ("--prompt", "ab"),
        "--prompt-file": ("--prompt-file", file),
        "-": ("-",),
        "stdin": (),
    }
    ran = generate(cycle, *given[way], "--raw", "--max-tokens", 5, stdin="ab\n")
    assert ran.out == written(5) + "\n", ran.err


def test_a_stop_text_ends_it_and_is_not_shown(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT, "--stop", "gh\na", "--stop", "xyz")
    assert ran.out == "cdef\n"
    assert "it wrote 'gh\\na'" in ran.err


def test_drafts_change_nothing(generate: Generating, cycle: Path) -> None:
    texts = {
        options: generate(cycle, *PROMPT, *options).out
        for options in (
            ("--layers", "none"),
            ("--layers", "suffix", "--temperature", "0.7", "--seed", "3"),
            ("--policy", "first-match", "--k", "30"),
            ("--policy", "first-match", "--controller", "class-k"),
            ("--policy", "first-match", "--controller", "content-k"),
        )
    }
    assert set(texts.values()) == {written(30) + "\n"}, texts


# -- what is shown


def colours_of(text: str) -> tuple[str, int]:
    """The text without its colours, and how many characters had one."""
    coloured = "".join(re.findall(r"\x1b\[\d+m(.*?)\x1b\[0m", text, re.DOTALL))
    return re.sub(r"\x1b\[\d+m", "", text), len(coloured)


@pytest.mark.usefixtures("kept_costs")
def test_tokens_are_coloured_or_marked_by_who_drafted_them(generate: Generating, cycle: Path) -> None:
    [told] = generate(cycle, *PROMPT, "--json").told
    drafted = sum(source != "none" for source in told["sources"])
    assert 10 < drafted < 30
    ran = generate(cycle, *PROMPT, "--color")
    assert colours_of(ran.out) == (written(30) + "\n", drafted)
    legend = ran.err.splitlines()[0]
    assert all(origin.name in legend for origin in ORIGINS.values())
    assert colours_of(ran.out)[0] == generate(cycle, *PROMPT, "--no-colour").out
    marked = generate(cycle, *PROMPT, "--marks").out
    marks = re.findall(r"«[psnd]:(.*?)»", marked, re.DOTALL)
    assert len("".join(marks)) == drafted
    assert re.sub(r"«[psnd]:(.*?)»", r"\1", marked, flags=re.DOTALL) == written(30) + "\n"


def test_only_origins_that_drafts_have_are_shown(tmp_path: Path) -> None:
    """Drafts from a corpus count as other outputs, but the legend promised a colour and the mark `c`."""
    outputs = [NewOutput("corpus", np.arange(40, dtype=np.int32), (40,), np.empty(0, np.int32), corpus=True)]
    with SuffixCache(tmp_path) as cache:
        cache.namespace("corpus").add_outputs(outputs)
        with cache.namespace("other").open_session([1, 2, 3], reads=["corpus"]) as session:
            draft = session.step([4], max_draft_tokens=4, verify_cost=0.0)
    assert set(draft.sources.tolist()) == {DraftSource.NAMESPACE}
    assert set(ORIGINS) == set(DraftSource) - {DraftSource.CORPUS}


def test_explained_steps(generate: Generating, cycle: Path, kept_costs: None) -> None:
    """Everything but the times is the same on every machine. SUFFIXSVC_UPDATE_GOLDEN=1 writes it anew."""
    ran = generate(cycle, *PROMPT, "--explain")
    explained = re.sub(r"\d+\.\d ms", "# ms", ran.out)
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(explained)
    assert explained == GOLDEN.read_text()
    assert ran.out.endswith(written(30) + "\n")


def test_json_tells_everything(generate: Generating, cycle: Path, kept_costs: None) -> None:
    ran = generate(cycle, *PROMPT, "--json", "--namespace", "a/b")
    [told] = ran.told
    assert ran.err == ""
    assert set(told) == {
        *("format", "model", "policy", "namespace", "curve", "prompt", "prompt_token_ids", "token_ids"),
        *("sources", "text", "finish", "stopped_at", "prefill", "decode_seconds", "tokens_per_second"),
        *("expected_speedup", "stats", "steps"),
    }
    assert told["format"] == "suffixsvc-generate/1"
    assert told["model"]["path"] == str(cycle)
    assert told["model"]["threads"] == 1
    assert (told["policy"], told["namespace"], told["finish"]) == ("expected-gain", "a/b", "length")
    assert (told["curve"]["measured"], told["curve"]["seconds_per_step"]) == (True, 1.0)
    assert bytes(told["token_ids"]).decode() == told["text"] == written(30)
    assert told["prefill"]["computed"] == len(told["prompt_token_ids"]) - 1 == 7
    steps, stats = told["steps"], told["stats"]
    assert [token for step in steps for token in step["emitted"]] == told["token_ids"]
    assert (len(steps), sum(step["accepted"] for step in steps)) == (stats["steps"], stats["accepted"])
    assert sum(len(step["drafted"]) for step in steps) == stats["drafted"]
    assert stats["accepted"] == sum(source != "none" for source in told["sources"])
    assert told["expected_speedup"] == pytest.approx(30 / stats["cost"])
    first = steps[0]
    assert [seen["layer"] for seen in first["considered"]] == ["suffix", "prompt-lookup"]
    assert first["layer"] == "suffix"
    assert first["considered"][0]["token_ids"][: len(first["drafted"])] == first["drafted"]


def test_on_a_terminal_there_are_colours_and_no_control_characters(tmp_path: Path) -> None:
    model = write_tiny_chain(tmp_path / "m.gguf", chain_of("a\x1b[]\x9b\n"))
    arguments = (model, "a\x1b[]\x9b\na", "--raw", "--max-tokens", 12)
    with Terminal() as terminal:
        child = process(*arguments, home=tmp_path, stdout=terminal.side)
        terminal.close_side()
        terminal.read_until("")
        _, said = child.communicate(timeout=PATIENCE_S)
    shown, coloured = colours_of(terminal.seen)
    assert coloured > 0
    assert shown.startswith("\\x1b[]"), "spelled out"
    assert "\x1b" not in shown
    assert "drafted by" in said
    piped = process(*arguments, home=tmp_path)
    out, _ = piped.communicate(timeout=PATIENCE_S)
    assert out.startswith("\x1b[]"), "a file gets what was written"


# -- chats


def test_a_chat_goes_on_where_it_was(generate: Generating, brief: Path) -> None:
    ran = generate(brief, "hello", "--system", "be brief", "--chat", "--json", stdin="again\n\n/quit\nno\n")
    first, second = ran.told
    assert [first["prompt"], second["prompt"]] == ["hello", "again"]
    assert [first["text"], second["text"]] == ["ok", "ok"]
    so_far = [*first["prompt_token_ids"], *first["token_ids"]]
    assert second["prompt_token_ids"][: len(so_far)] == so_far, "the history, as it was written"
    assert second["prefill"]["reused"] == len(so_far) - 1, "the same KV slot"
    assert {source for source in second["sources"] if source != "none"} <= {"prompt_lookup", "session"}
    assert second["stats"]["accepted"] > 0


def test_statistics_of_a_chat(generate: Generating, brief: Path) -> None:
    ran = generate(brief, "--chat", stdin="one\n/stats\ntwo\n")
    assert ran.out == "ok\nok\n"
    assert ran.err.count("(MAT)") == 2, "once asked for, once at the end"
    assert "3 tokens, " in ran.err
    assert "6 tokens in 2 turns, " in ran.err


def test_a_chat_on_a_terminal(brief: Path, tmp_path: Path) -> None:
    with Terminal() as terminal:
        side = terminal.side
        child = process(brief, "--chat", home=tmp_path, stdin=side, stdout=side, stderr=side)
        terminal.close_side()
        terminal.read_until("> ")
        terminal.type("hello\n")
        terminal.read_until("tokens/s")
        terminal.read_until("> ")
        terminal.type("/quit\n")
        terminal.read_until("")
        assert child.wait(PATIENCE_S) == 0
    assert "\nok\n" in terminal.seen
    assert "/quit ends the chat" in terminal.seen


# -- the end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_text_ends_in_order(cycle: Path, tmp_path: Path, number: signal.Signals) -> None:
    """It takes seconds to fill this context; the session is closed, and what was written is remembered."""
    endless = (cycle, "ab", "--raw", "--max-tokens", 30_000, "--context", 30_100, "--k", 1)
    child = process(*endless, "--data", tmp_path / "data", home=tmp_path)
    assert child.stdout is not None
    begun = os.read(child.stdout.fileno(), 20).decode()  # a buffer would keep more than that to itself
    child.send_signal(number)
    out, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130, said
    text = (begun + out).removesuffix("\n")
    assert text == written(len(text)), "every token that was written is there, and nothing else"
    assert len(begun) <= len(text) < 30_000
    assert "it ended: it was interrupted" in said
    assert f"{len(text)} tokens, " in said
    assert said.endswith("interrupted\n")
    with SuffixCache(tmp_path / "data") as cache:
        cache.check()
        assert (cache.stats().outputs, cache.stats().tokens) == (1, len(text))


def interrupt(child: subprocess.Popen[str]) -> None:
    """As one does who sees a prompt. A signal that comes between Python's prompt and its waiting for a line
    is seen with the next key only: wait until it sleeps, and press the keys again if that was too early."""
    stat = Path(f"/proc/{child.pid}/stat")
    for _ in range(20):
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] in "SZ", "it waits for a line")
        assert child.poll() is None, "it ended by itself"
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(5.0)
            return
    child.kill()
    raise AssertionError("it does not hear Ctrl-C")


def test_a_chat_that_is_interrupted_keeps_its_turns(brief: Path, tmp_path: Path) -> None:
    with Terminal() as terminal:
        side = terminal.side
        child = process(
            brief, "--chat", "--data", tmp_path / "data", home=tmp_path, stdin=side, stdout=side, stderr=side
        )
        terminal.close_side()
        terminal.read_until("> ")
        terminal.type("hello\n")
        terminal.read_until("tokens/s")
        terminal.read_until("> ")
        interrupt(child)
        terminal.read_until("")
    assert child.returncode == 130
    assert "(MAT)" in terminal.seen
    with SuffixCache(tmp_path / "data") as cache:
        assert cache.stats().outputs == 1


def test_whoever_stops_reading_ends_it(cycle: Path, tmp_path: Path) -> None:
    child = process(cycle, "ab", "--raw", "--max-tokens", 3000, "--context", 4000, home=tmp_path)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(5)
    child.stdout.close()
    assert child.wait(PATIENCE_S) == 0
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()


def test_a_full_disk_that_takes_no_text_ends_it(cycle: Path, tmp_path: Path) -> None:
    """The text of a model on a full disk ended in a traceback; the outputs so far are kept as ever."""
    with open("/dev/full", "w") as full:
        child = process(cycle, "ab", "--raw", "--max-tokens", 30, home=tmp_path, stdout=full)
    assert child.stderr is not None
    told = child.stderr.read()
    child.stderr.close()
    assert child.wait(PATIENCE_S) == 2
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith(
        "suffixsvc generate: standard output must be writable; got No space"
    )


def test_a_full_context_is_told(generate: Generating, brief: Path, cycle: Path) -> None:
    ran = generate(cycle, "ab", "--raw", "--context", 256, "--max-tokens", 1000)
    assert ran.code == 0
    assert ran.out == written(255) + "\n"
    assert "the context is full (--context)" in ran.err
    long = "word " * 60
    ran = generate(brief, "--chat", "--context", 256, stdin=f"hi\n{long}\n")
    assert (ran.code, ran.out) == (2, "ok\n")
    assert "the prompt is longer than the target's context; expected at most 256 tokens" in ran.err
    assert "3 tokens, " in ran.err, "statistics of what there was"


# -- bad input


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "two prompts": (
        ("a", "--prompt", "b"),
        "more than one prompt; expected one of them; got PROMPT and --prompt",
    ),
    "no such file": (("--prompt-file", "/none/p.txt"), "the prompt cannot be read"),
    "chat and raw": (("a", "--chat", "--raw"), "--chat and --raw at the same time"),
    "system and raw": (("a", "--system", "s", "--raw"), "--system and --raw at the same time"),
    "two memories": (("a", "--data", "d", "--service", "unix:/s"), "--data and --service at the same time"),
    "a service that preloads": (("a", "--service", "unix:/s", "--preload", "sql"), "serve --preload"),
    "an address": (
        ("a", "--service", "nonsense"),
        "not an address to connect to; expected unix:PATH or HOST",
    ),
    "an empty stop text": (("a", "--stop", ""), "--stop makes no sense"),
    "no text": (("a\udcff", "--raw"), "the prompt is no text; expected UTF-8"),
    "no text to stop at": (("a", "--stop", "\udcff"), "--stop is no text; expected UTF-8"),
    "an empty prompt": (("", "--raw"), "an empty prompt"),
    "a policy": (("a", "--policy", "best"), "no such policy; expected expected-gain or first-match"),
    "a controller": (
        ("a", "--policy", "first-match", "--controller", "x"),
        "no such controller; expected fixed-k",
    ),
    "a controller of nobody": (("a", "--controller", "fixed-k"), "expected --policy first-match"),
    "layers": (("a", "--layers", "prompt-lookup,magic"), "no such layer; expected prompt-lookup, suffix"),
    "a memory nobody asks": (("a", "--layers", "none", "--data", "d"), "--data without the suffix layer"),
    "a namespace": (("a", "--namespace", "a b"), "namespace path must be without spaces"),
    "a temperature": (("a", "--temperature", "-1"), "temperature makes no sense"),
    "settings": (("a", "--settings", "/none.toml"), "the settings in /none.toml cannot be read"),
    "experts": (("a", "--experts", "2"), "has no experts to choose from"),
    "a recipe": (("a", "--preload", "poems"), "poems"),
    "a recipe of others": (("a", "--preload", "sql"), "the recipe sql was made for another tokenizer"),
    "a draft model": (("a", "--draft", "none.gguf"), "no such model file"),
    "a long prompt": (
        ("a" * 300, "--raw", "--context", 256),
        "the prompt is longer than the target's context",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(generate: Generating, cycle: Path, what: str) -> None:
    arguments, said = BAD[what]
    ran = generate(cycle, *arguments)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert ran.err.splitlines()[-1].startswith("suffixsvc generate: ")
    assert said in ran.err.splitlines()[-1]


def test_bad_models(generate: Generating, tmp_path: Path) -> None:
    assert "is not downloaded" in generate("smollm2-135m", "a").err
    assert "no such model in the registry" in generate("nobody", "a").err
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert generate(tmp_path / "m.gguf", "a").code == 2
    strange = write_tiny_chain(tmp_path / "strange.gguf", {})
    strange.write_bytes(
        strange.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lhama", 1)
    )
    ran = generate(strange, "a")
    assert ran.code == 2
    assert "unknown model architecture: 'lhama'" in ran.err


def test_no_prompt_on_a_terminal(brief: Path, tmp_path: Path) -> None:
    with Terminal() as terminal:
        child = process(brief, home=tmp_path, stdin=terminal.side)
        _, said = child.communicate(timeout=PATIENCE_S)
        terminal.close_side()
    assert child.returncode == 2
    assert "there is no prompt; expected PROMPT, --prompt TEXT" in said


def test_prompts_that_are_no_text(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, "--raw", stdin=b"ab\xff")
    assert ran.code == 2
    assert "the prompt is no text; expected UTF-8; got stdin, byte 2" in ran.err
    ran = generate(cycle, "--chat", "--max-tokens", 3, stdin=b"hello\nab\xff\n")
    assert ran.code == 2
    assert "a turn is no text; expected UTF-8" in ran.err


# -- choosing


def test_a_grammar_is_kept_to_whatever_is_drafted(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "digits.gbnf"
    grammar.write_text('root ::= [cde]+ "x" [0-9] [0-9]')
    ran = generate(cycle, *PROMPT, "--grammar", grammar)
    assert ran.code == 0
    assert re.fullmatch(r"cde[cde]*x?\d{0,2}", ran.out.strip())
    plain = generate(cycle, *PROMPT, "--grammar", grammar, "--layers", "none")
    assert ran.out == plain.out


def test_json_that_fits_a_schema(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}')
    ran = generate(cycle, *PROMPT, "--json-schema", schema)
    assert ran.code == 0
    assert ran.out.strip().startswith("{")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--min-p", "2"), "min_p makes no sense"),
        (("--repeat-penalty", "-1"), "repeat_penalty makes no sense"),
        (("--grammar", "missing.gbnf"), "the grammar cannot be read"),
        (("--json-schema", "missing.json"), "the schema cannot be read"),
    ],
)
def test_choices_that_make_no_sense(
    generate: Generating, cycle: Path, options: tuple[str, ...], said: str
) -> None:
    ran = generate(cycle, *PROMPT, *options)
    assert ran.code == 2
    assert said in ran.err


def test_a_malformed_grammar_says_where(generate: Generating, cycle: Path, tmp_path: Path) -> None:
    grammar = tmp_path / "bad.gbnf"
    grammar.write_text('root ::= "a" (\n')
    ran = generate(cycle, *PROMPT, "--grammar", grammar)
    assert ran.code == 2
    assert "line" in ran.err


def test_a_grammar_is_looked_at_before_the_model(generate: Generating, tmp_path: Path) -> None:
    """Measuring what a model's steps cost may take a minute."""
    (tmp_path / "no.gguf").write_bytes(b"GGUF but no model")
    for text in ('root ::= "a" (\n', ""):
        grammar = tmp_path / "bad.gbnf"
        grammar.write_text(text)
        ran = generate(tmp_path / "no.gguf", *PROMPT, "--grammar", grammar)
        assert ran.code == 2
        assert "no.gguf" not in ran.err
        assert "grammar" in ran.err


@pytest.mark.parametrize("words", ["", " \n"])
def test_an_empty_prompt_is_none(generate: Generating, cycle: Path, words: str) -> None:
    ran = generate(cycle, "--prompt", words)
    assert ran.code == 2
    assert "the prompt is empty" in ran.err


def test_addresses_that_are_none_are_said(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT, "--draft", "http://")
    assert ran.code == 2
    assert "not the address of a llama-server" in ran.err
