"""``suffixsvc generate``: texts, output styles, chats, interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.types import DraftSource, NewOutput
from suffixsvc_cli.generate.show import ORIGINS
from suffixsvc_driver.cost.live_curve import LiveCurve
from support.generating import PROMPT, Generating, Terminal, cycle_text, process
from support.serving import PATIENCE_S, eventually
from support.tiny_gguf import chain_of, write_tiny_chain

GOLDEN = Path(__file__).parents[1] / "golden" / "cli" / "generate_explain.txt"


@pytest.fixture
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost curve does not learn, so that the output is the same on every machine."""
    monkeypatch.setattr(LiveCurve, "observe", lambda curve, width, seconds, base=1: None)


# -- a text


def test_the_text_is_alone_on_stdout(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT)
    assert ran.code == 0
    assert ran.out == cycle_text(30) + "\n"
    for said in (
        "30 tokens, ",
        "(MAT)",
        "the maximum number of tokens",
        "from: the model itself",
        "prompt-lookup",
        "kind of evidence",
        "expected by the cost curve; ",
    ):
        assert said in ran.err
    assert "drafted by" not in ran.err, "no legend without colours"


@pytest.mark.parametrize("source", ["--prompt", "--prompt-file", "-", "stdin"])
def test_sources_of_a_prompt(generate: Generating, cycle: Path, tmp_path: Path, source: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("ab\n")
    given: dict[str, tuple[object, ...]] = {
        "--prompt": ("--prompt", "ab"),
        "--prompt-file": ("--prompt-file", file),
        "-": ("-",),
        "stdin": (),
    }
    ran = generate(cycle, *given[source], "--raw", "--max-tokens", 5, stdin="ab\n")
    assert ran.out == cycle_text(5) + "\n", ran.err


def test_a_stop_text_ends_it_and_is_not_shown(generate: Generating, cycle: Path) -> None:
    ran = generate(cycle, *PROMPT, "--stop", "gh\na", "--stop", "xyz")
    assert ran.out == "cdef\n"
    assert "the stop text 'gh\\na'" in ran.err


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
    assert set(texts.values()) == {cycle_text(30) + "\n"}, texts


# -- what is shown


def colours_of(text: str) -> tuple[str, int]:
    """The text without its colours, and how many characters had one."""
    coloured = "".join(re.findall(r"\x1b\[\d+m(.*?)\x1b\[0m", text, re.DOTALL))
    return re.sub(r"\x1b\[\d+m", "", text), len(coloured)


@pytest.mark.usefixtures("fixed_costs")
def test_tokens_are_coloured_or_marked_by_origin(generate: Generating, cycle: Path) -> None:
    [turn] = generate(cycle, *PROMPT, "--json").turns
    drafted = sum(source != "none" for source in turn["sources"])
    assert 10 < drafted < 30
    ran = generate(cycle, *PROMPT, "--color")
    assert colours_of(ran.out) == (cycle_text(30) + "\n", drafted)
    legend = ran.err.splitlines()[0]
    assert all(origin.name in legend for origin in ORIGINS.values())
    assert colours_of(ran.out)[0] == generate(cycle, *PROMPT, "--no-colour").out
    marked = generate(cycle, *PROMPT, "--marks").out
    marks = re.findall(r"«[psnd]:(.*?)»", marked, re.DOTALL)
    assert len("".join(marks)) == drafted
    assert re.sub(r"«[psnd]:(.*?)»", r"\1", marked, flags=re.DOTALL) == cycle_text(30) + "\n"


def test_only_origins_that_drafts_have_are_shown(tmp_path: Path) -> None:
    """Drafts from a corpus count as other outputs, but the legend promised a colour and the mark `c`."""
    outputs = [NewOutput("corpus", np.arange(40, dtype=np.int32), (40,), np.empty(0, np.int32), corpus=True)]
    with SuffixCache(tmp_path) as cache:
        cache.namespace("corpus").add_outputs(outputs)
        with cache.namespace("other").open_session([1, 2, 3], reads=["corpus"]) as session:
            draft = session.step([4], max_draft_tokens=4, verify_cost=0.0)
    assert set(draft.sources.tolist()) == {DraftSource.NAMESPACE}
    assert set(ORIGINS) == set(DraftSource) - {DraftSource.CORPUS}


def test_explained_steps(generate: Generating, cycle: Path, fixed_costs: None) -> None:
    """Everything but the times is the same on every machine. SUFFIXSVC_UPDATE_GOLDEN=1 writes it anew."""
    ran = generate(cycle, *PROMPT, "--explain")
    explained = re.sub(r"\d+\.\d ms", "# ms", ran.out)
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(explained)
    assert explained == GOLDEN.read_text()
    assert ran.out.endswith(cycle_text(30) + "\n")


def test_json_has_everything(generate: Generating, cycle: Path, fixed_costs: None) -> None:
    ran = generate(cycle, *PROMPT, "--json", "--namespace", "a/b")
    [turn] = ran.turns
    assert ran.err == ""
    assert set(turn) == {
        *("format", "model", "policy", "namespace", "curve", "prompt", "prompt_token_ids", "token_ids"),
        *("sources", "text", "finish", "stopped_at", "prefill", "decode_seconds", "tokens_per_second"),
        *("expected_speedup", "stats", "steps"),
    }
    assert turn["format"] == "suffixsvc-generate/1"
    assert turn["model"]["path"] == str(cycle)
    assert turn["model"]["threads"] == 1
    assert (turn["policy"], turn["namespace"], turn["finish"]) == ("expected-gain", "a/b", "length")
    assert (turn["curve"]["measured"], turn["curve"]["seconds_per_step"]) == (True, 1.0)
    assert bytes(turn["token_ids"]).decode() == turn["text"] == cycle_text(30)
    assert turn["prefill"]["computed"] == len(turn["prompt_token_ids"]) - 1 == 7
    steps, stats = turn["steps"], turn["stats"]
    assert [token for step in steps for token in step["emitted"]] == turn["token_ids"]
    assert (len(steps), sum(step["accepted"] for step in steps)) == (stats["steps"], stats["accepted"])
    assert sum(len(step["drafted"]) for step in steps) == stats["drafted"]
    assert stats["accepted"] == sum(source != "none" for source in turn["sources"])
    assert turn["expected_speedup"] == pytest.approx(30 / stats["cost"])
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


def test_a_chat_reuses_its_history(generate: Generating, brief: Path) -> None:
    ran = generate(brief, "hello", "--system", "be brief", "--chat", "--json", stdin="again\n\n/quit\nno\n")
    first, second = ran.turns
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
    """It takes seconds to fill this context; the session is closed, and the output is stored."""
    endless = (cycle, "ab", "--raw", "--max-tokens", 30_000, "--context", 30_100, "--k", 1)
    child = process(*endless, "--data", tmp_path / "data", home=tmp_path)
    assert child.stdout is not None
    begun = os.read(child.stdout.fileno(), 20).decode()  # a buffer would keep more than that to itself
    child.send_signal(number)
    out, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130, said
    text = (begun + out).removesuffix("\n")
    assert text == cycle_text(len(text)), "every token that was written is there, and nothing else"
    assert len(begun) <= len(text) < 30_000
    assert "end of text: interrupted" in said
    assert f"{len(text)} tokens, " in said
    assert said.endswith("interrupted\n")
    with SuffixCache(tmp_path / "data") as cache:
        cache.check()
        assert (cache.stats().outputs, cache.stats().tokens) == (1, len(text))


def interrupt(child: subprocess.Popen[str]) -> None:
    """Press Ctrl-C at a prompt. A signal between Python's prompt and its waiting for a line is noticed with
    the next key only: wait until the process sleeps, and send the signal again if it was too early.
    """
    stat = Path(f"/proc/{child.pid}/stat")
    for _ in range(20):
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] in "SZ", "it waits for a line")
        assert child.poll() is None, "it ended by itself"
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(5.0)
            return
    child.kill()
    raise AssertionError("it does not react to Ctrl-C")


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


def test_a_closed_stdout_ends_it(cycle: Path, tmp_path: Path) -> None:
    child = process(cycle, "ab", "--raw", "--max-tokens", 3000, "--context", 4000, home=tmp_path)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(5)
    child.stdout.close()
    assert child.wait(PATIENCE_S) == 0
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()


def test_a_full_disk_that_takes_no_text_ends_it(cycle: Path, tmp_path: Path) -> None:
    """It ended in a traceback; outputs so far are stored as usual."""
    with open("/dev/full", "w") as full:
        child = process(cycle, "ab", "--raw", "--max-tokens", 30, home=tmp_path, stdout=full)
    assert child.stderr is not None
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait(PATIENCE_S) == 2
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith(
        "suffixsvc generate: standard output must be writable; got No space"
    )


def test_a_full_context_is_reported(generate: Generating, brief: Path, cycle: Path) -> None:
    ran = generate(cycle, "ab", "--raw", "--context", 256, "--max-tokens", 1000)
    assert ran.code == 0
    assert ran.out == cycle_text(255) + "\n"
    assert "the context is full (--context)" in ran.err
    long = "word " * 60
    ran = generate(brief, "--chat", "--context", 256, stdin=f"hi\n{long}\n")
    assert (ran.code, ran.out) == (2, "ok\n")
    assert "the prompt is longer than the target's context; expected at most 256 tokens" in ran.err
    assert "3 tokens, " in ran.err, "statistics of what there was"
