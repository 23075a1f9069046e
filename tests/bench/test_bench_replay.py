"""``suffixsvc bench replay``: selection of calls, plots, the command and its messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from xml.etree import ElementTree

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import COLOURS, Chart, Series, svg
from suffixsvc.plots.files import svg_file
from suffixsvc_bench.replay.logs import find_logs
from suffixsvc_bench.replay.traces import Selection, kind_of, load_trace, load_traces, split_agents
from support.command_line import run_verb
from support.tiny_tokenizer import write_gguf, write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/recorded_demo.jsonl.gz"


def write_log(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


# ---------------------------------------------------------------------------------------------- selection


def records(*agents: str, tokens: int = 10) -> list[dict[str, Any]]:
    return [
        {"response_token_ids": list(range(i, i + tokens)), "agent": agent, "session_id": str(i)}
        for i, agent in enumerate(agents)
    ]


def test_agents_limits_and_training(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", records("a", "b", "a", "b", "b"))

    def firsts(selection: Selection) -> list[int]:
        return [int(c.response[0]) for c in load_trace(log, None, selection).calls]

    assert firsts(Selection()) == [0, 1, 2, 3, 4]
    assert firsts(Selection(agents=("a",))) == [0, 2]
    assert firsts(Selection(agents=("most-frequent",))) == [1, 3, 4]
    assert firsts(Selection(agents=("a",), agents_of={"log": ("b",)})) == [1, 3, 4]
    assert firsts(Selection(max_tokens=11)) == [0, 1]
    assert firsts(Selection(max_calls=3)) == [0, 1, 2]
    assert firsts(Selection(train=0.5)) == [2, 3, 4]
    assert len(load_trace(log, None, Selection(train=0.5)).warmup) == 2
    shuffled = firsts(Selection(shuffle=True, seed=1))
    assert sorted(shuffled) == [0, 1, 2, 3, 4]
    assert shuffled == firsts(Selection(shuffle=True, seed=1)) != firsts(Selection(shuffle=True, seed=2))
    with pytest.raises(InvalidInputError, match=r"a \(2 calls\), b \(3 calls\)"):
        load_trace(log, None, Selection(agents=("absent",)))


def test_agents_of_one_log_are_written_with_its_name() -> None:
    wanted = ["x", "sql=gpt-4", "sql=gpt-5", "odd=name"]
    assert split_agents(wanted, ["sql", "chat"]) == (("x", "odd=name"), {"sql": ("gpt-4", "gpt-5")})


def test_other_logs_can_be_the_warmup(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", records("a", "a"))
    other = write_log(tmp_path / "other.jsonl", records("b", "b", "b"))
    (one,) = load_traces([log], [other], None, Selection(train=0.5))
    assert (len(one.warmup), len(one.calls)) == (4, 1)


def test_a_directory_is_its_logs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "tokenizer.json.gz", "notes.md"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in find_logs([tmp_path])] == ["a.jsonl.gz", "b.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="must contain logs"):
        find_logs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{\n "name": "x",\n "rows": [\n  {"id": 1}\n ]\n}', "json"),
        ("def f(x):\n    return x\n\nclass A:\n    pass", "code"),
        ("SELECT name FROM customers WHERE city = 'Lisbon'", "code"),
        ("for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}", "code"),
        ("The weather was fine.\nWe went out and returned late.", "prose"),
        ("", "unknown"),
    ],
)
def test_kinds_of_text(text: str, kind: str) -> None:
    assert kind_of([text]) == kind


# ------------------------------------------------------------------------------------------------- plots


def test_a_chart_is_xml_with_a_mark_a_point() -> None:
    points = [(0.01, 5.0), (0.1, 2.0), (1.0, 1.1)]
    series = [Series("a <b>", points, 0), Series("fixed", points, 1, dashed=True), Series("none", [], 2)]
    drawn = ElementTree.fromstring(svg(Chart("t", "c", "x & y", "y", series, log_x=True, level=1.0)))
    assert len(drawn.findall("circle")) == 3
    assert next(e.text for e in drawn.iter("title")) == "a <b>: 5 at 0.01"
    texts = {e.text for e in drawn.iter("text")}
    assert {"0.01", "0.1", "1", "x & y"} <= texts
    assert svg(Chart("t", "c", "x", "y", [Series("none", [(float("nan"), 1)], 0)])) == ""


@pytest.mark.parametrize("log_x", [False, True])
def test_a_chart_of_one_point_can_be_drawn(log_x: bool) -> None:
    ElementTree.fromstring(svg(Chart("t", "c", "x", "y", [Series("a", [(3, 3)], 0)], log_x=log_x)))


def test_a_chart_in_a_file_stands_alone() -> None:
    series = [Series(f"a & {i}", [(1, 2), (2, 3)], i) for i in range(COLOURS)]
    drawn = ElementTree.fromstring(svg_file(Chart("t <1>", "c", "x", "y", series, x_ticks=[1, 2])))
    texts = [e.text for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "t <1>" in texts
    assert {s.name for s in series} <= set(texts)
    style = drawn.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert style.text is not None
    for colour in range(COLOURS):  # each is defined for light and dark, and used
        assert style.text.count(f"--c{colour}:") == 2
        assert f".c{colour} " in style.text
    assert svg_file(Chart("t", "c", "x", "y", [])) == ""


# -------------------------------------------------------------------------------------------- the command


def run(*arguments: str) -> CompletedProcess[str]:
    return run_verb("bench", "replay", *arguments)


OURS = ("--method", "ours-linear", "--method", "ours-tree", "--method", "prompt-lookup")


def test_tables_and_a_report(tmp_path: Path) -> None:
    other = write_log(tmp_path / "other.jsonl", records(*"aaaaaa", tokens=60))
    page = tmp_path / "out.html"
    result = run(str(SAMPLE), str(other), *OURS, "--report", str(page), "--seed", "7", "--max-calls", "8")
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines() == ["  0% 1/2 recorded_demo", "  0% 2/2 other"]
    for words in ("recorded_demo (code): 8 calls", "ours, tree", "ECE", "geometric mean", "seed 7"):
        assert words in result.stdout, words

    text = page.read_text(encoding="utf-8")
    assert_self_contained(text)
    for title in (
        "Speedup against the cost",
        "Acceptance against K",
        "Hit rate against the size of the history",
        "Reliability",
        "MAT while the cache warms",
    ):
        assert text.count(title) >= 3, f"{title}: all traces, and each of two"
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 18
    for drawing in drawings:
        assert list(ElementTree.fromstring(drawing).iter("path"))
    assert "seed" in text
    assert "suffixsvc 0." in text
    assert "prefers-color-scheme: dark" in text


class References(HTMLParser):
    """Attributes by which a page loads something, and tags that are left open."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")
        ]
        if tag in ("script", "link", "iframe", "object", "embed", "img"):
            self.found.append(tag)
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def assert_self_contained(page: str) -> None:
    parser = References()
    parser.feed(page)
    assert parser.found == []
    assert [tag for tag in parser.open if tag not in ("p",)] == []
    for loads in ("http:", "https:", "url(", "@import"):
        assert loads not in page


def test_json_has_everything(tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps({"seconds": [0, 0.02, 0.03, 0.04, 0.05, 0.044]}))  # a file of the driver
    result = run(
        str(SAMPLE), *OURS, "--json", "--cost", "0.05", "--cost-curve", str(curve), "--max-calls", "20"
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["provenance"]["cores"] >= 1
    assert document["request"]["seed"] == 0
    (one,) = document["traces"]
    assert (one["name"], one["kind"], one["calls"]) == ("recorded_demo", "code", 20)
    ours = {run["cost"]: run for run in one["runs"] if run["method"] == "ours-tree"}
    assert set(ours) == {"0.05", "curve"}
    assert max(map(int, ours["curve"]["widths"])) <= 4, "the curve does not cover 5 tokens"
    assert 0 <= ours["0.05"]["reliability"]["ece"] <= 1
    assert sum(count for _, _, count in ours["0.05"]["reliability"]["bins"]) == sum(
        int(width) * count for width, count in ours["0.05"]["widths"].items()
    )
    lookup = [run for run in one["runs"] if run["method"] == "prompt-lookup"]
    assert [sorted(run["speedups"]) for run in lookup] == [["0.05"], ["curve"]]
    assert lookup[0]["reliability"] is None
    us = lookup[0]["rates"]["microseconds"]
    assert 0 < us["p50"] <= us["p90"] <= us["p99"]


def test_the_same_request_gives_the_same_figures() -> None:
    """In another process, too: hashes of texts differ between processes."""
    request = ["bench", "replay", str(SAMPLE), *OURS, "--json", "--max-calls", "15", "--shuffle"]

    def figures(result: CompletedProcess[str]) -> Any:
        (one,) = json.loads(result.stdout)["traces"]
        return [(run["method"], run["cost"], run["speedups"], run["widths"]) for run in one["runs"]]

    elsewhere = subprocess.run(
        [sys.executable, "-m", "suffixsvc_cli", *request], capture_output=True, text=True, check=True
    )
    assert figures(run_verb(*request)) == figures(elsewhere)


@pytest.mark.parametrize("verb", [["replay"], ["bench", "replay", "--method", "prompt-lookup"]])
def test_texts_are_encoded_with_a_gguf(verb: list[str], tmp_path: Path) -> None:
    """Both verbs refused the GGUF that `build` takes: "Cannot instantiate Tokenizer from buffer"."""
    log = write_log(tmp_path / "texts.jsonl", [{"prompt": "q", "response": "an answer"}] * 2)
    for codec in (write_gguf(tmp_path / "m.gguf"), write_tokenizer(tmp_path / "t.json")):
        ran = run_verb(*verb, log, "--tokenizer", codec, "--json")
        assert ran.returncode == 0, ran.stderr
        assert set(re.findall(r'"tokens": (\d+)', ran.stdout)) == {"18"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "logs must name at least one log"),
        (["gone.jsonl"], "gone.jsonl"),
        (["empty.jsonl"], "an empty log"),
        (["texts.jsonl"], "--tokenizer"),
        (["ids.jsonl", "--method", "nonsense"], "ours-linear"),
        (["ids.jsonl", "--agent", "absent"], "a call of absent with a response; got calls of sql (3 calls)"),
        (["ids.jsonl", "--cost-curve", "milliseconds.json"], "Divide the curve by its entry 1"),
        (["ids.jsonl", "--report", "nowhere/out.html"], "must be a file in a writable folder"),
        (["ids.jsonl", "--report", "."], "report"),
        (["ids.jsonl", "--cost-curve", "nan.json"], "nan.json"),
        (["ids.jsonl", "--cost-curve", "short.json"], "curve"),
        (["ids.jsonl", "--cost", "nan"], "nan"),
        (["ids.jsonl", "--cost", "-1"], "cost"),
        (["ids.jsonl", "--train", "1.5"], "train"),
        (["ids.jsonl", "--start", "tepid"], "tepid"),
        (["ids.jsonl", "--tokenizer", "ids.jsonl"], "a tokenizer.json"),
        (["ids.jsonl", "--train-log", "gone.jsonl"], "gone.jsonl"),
    ],
)
def test_invalid_input_is_one_message_and_writes_nothing(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "ids.jsonl", records("sql", "sql", "sql"))
    write_log(tmp_path / "texts.jsonl", [{"response": "abc"}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "milliseconds.json").write_text("[0, 29.5, 44.1]")
    (tmp_path / "nan.json").write_text("[0, 1, NaN]")
    (tmp_path / "short.json").write_text("[]")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run(*arguments)
    assert result.returncode == 2, result.stdout
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_methods_are_listed() -> None:
    result = run("--methods")
    assert result.returncode == 0
    for key in ("ours-auto", "prompt-lookup-vllm", "ngram-cache", "ngram-mod"):
        assert key in result.stdout
