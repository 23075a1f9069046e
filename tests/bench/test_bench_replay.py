"""``suffixsvc bench replay``: what it selects, counts, prices and shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from suffixsvc_bench.methods import Method, MethodSpec, Settings, known_methods
from suffixsvc_bench.methods.base import guess
from suffixsvc_bench.replay.calibration import Calibration, ReliabilityBin, pooled, reliability
from suffixsvc_bench.replay.compare import NamedCost, Plan, compare, geometric_mean
from suffixsvc_bench.replay.grids import summary_grids
from suffixsvc_bench.replay.kinds import kind_of
from suffixsvc_bench.replay.logs import Call, find_logs
from suffixsvc_bench.replay.run import replay_method
from suffixsvc_bench.replay.tally import price
from suffixsvc_bench.replay.traces import Selection, Trace, load_trace, load_traces, split_agents
from support.tiny_tokenizer import write_gguf, write_tokenizer

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import COLOURS, Chart, Series, svg
from suffixsvc.plots.files import svg_file
from suffixsvc.types import Draft, TokenArray

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/recorded_demo.jsonl.gz"


def ids(tokens: list[int]) -> TokenArray:
    return np.array(tokens, np.int32)


def call(response: list[int], prompt: list[int] | None = None) -> Call:
    return Call("agent", "s", ids(prompt or []), ids(response))


class Counting(Method):
    """Drafts 1, 2, 3 .. as wide as it may, and remembers how many calls it saw."""

    made = 0

    def __init__(self, settings: Settings) -> None:
        type(self).made += 1
        self.settings = settings
        self.calls = 0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        self.prompt = prompt

    def draft(self) -> Draft:
        return guess(list(range(1, self.settings.max_draft_tokens + 1)))

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        pass

    def end(self) -> None:
        self.calls += 1

    def memory_bytes(self) -> int:
        return self.calls


def counting(k: int = 3, priced: bool = False, key: str = "counting", family: str = "") -> MethodSpec:
    return MethodSpec(key, key, "for tests", k, Counting, priced=priced, families=(family,) if family else ())


def trace(*calls: Call, warming: tuple[Call, ...] = ()) -> Trace:
    return Trace("t", Path("t.jsonl"), "code", calls, warming)


def write_log(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


# ----------------------------------------------------------------------------------------------- counting


def test_a_replay_worked_by_hand() -> None:
    # 1 2 3 accepted and the bonus 9; then 1 of 1 2 3 accepted and 5; then 1 2 and the answer ends
    tally = replay_method(Counting(Settings(3, 0.1)), [call([1, 2, 3, 9, 1, 5, 1, 2])])
    assert (tally.steps, tally.tokens, tally.drafted, tally.accepted) == (3, 8, 9, 6)
    assert (tally.steps_with_draft, tally.steps_with_hit) == (3, 3)
    assert tally.widths == {3: 3}
    assert tally.speedup(0.1) == pytest.approx(8 / (3 * 1.3))
    assert tally.speedup([0, 1, 2, 3, 1.5]) == pytest.approx(8 / (3 * 1.5))
    assert tally.rates()["mean_accepted_tokens"] == pytest.approx(8 / 3)


def test_prices() -> None:
    assert price({0: 10, 4: 5}, 0.05) == pytest.approx(10 + 5 * 1.2)
    assert price({0: 1, 2: 1}, [0, 1, 1.5, 1.25]) == pytest.approx(1 + 1.25)
    assert price({}, 0.1) == 0
    with pytest.raises(ValueError, match="3 tokens"):
        price({3: 1}, [0, 1, 1.5])


def test_a_prompt_is_cut_to_its_end() -> None:
    method = Counting(Settings(3, 0.1))
    replay_method(method, [call([1], prompt=[5, 6, 7])], prompt_tokens=2)
    assert method.prompt.tolist() == [6, 7]
    replay_method(method, [call([1], prompt=[5, 6, 7])])
    assert method.prompt.tolist() == [5, 6, 7]


def test_a_method_is_replayed_once_for_all_prices_unless_it_looks_at_them() -> None:
    costs = [NamedCost("0.01", 0.01), NamedCost("0.2", 0.2), NamedCost("curve", [0, 1, 1.5, 2])]
    methods = [counting(k=5), counting(k=2, priced=True, key="priced")]
    (result,) = compare([trace(call([1, 2, 3, 4]))], Plan(methods, costs))
    runs = {(run.method, run.k, run.cost): run for run in result.runs}
    # the curve has prices up to 2 drafted tokens: the wide method is replayed again for it
    expected = {("counting", 5, ""), ("counting", 2, "")}
    assert set(runs) == expected | {("priced", 2, name) for name in ("0.01", "0.2", "curve")}
    assert set(runs["counting", 5, ""].speedups) == {"0.01", "0.2"}
    assert set(runs["priced", 2, "0.2"].speedups) == {"0.2"}
    assert result.run("counting", "curve") is runs["counting", 2, ""]
    assert result.run("counting", "0.01") is runs["counting", 5, ""]
    # 1 2, the bonus 3, and a last step for 4
    assert result.run("counting", "curve").speedups["curve"] == pytest.approx(4 / (2 * 2))  # type: ignore[union-attr] # seen above


def test_the_best_in_hindsight_is_chosen_per_cost() -> None:
    methods = [counting(k=1, key="narrow", family="f"), counting(k=9, key="wide", family="f")]
    plan = Plan(methods, [NamedCost("0.01", 0.01), NamedCost("0.9", 0.9)])
    (result,) = compare([trace(call([1, 2, 3, 9] * 4))], plan)
    keys = [spec.key for spec in methods]
    best = {cost: result.best(keys, cost) for cost in ("0.01", "0.9")}
    assert best["0.01"] is not None
    assert best["0.9"] is not None
    assert (best["0.01"].method, best["0.9"].method) == ("wide", "narrow")
    assert result.best([], "0.01") is None


def test_the_summary_divides_by_the_best_in_hindsight() -> None:
    family = [counting(k=k, key=f"fixed-{k}", family="arctic") for k in (1, 3, 5, 9)]
    plan = Plan([counting(k=3, priced=True, key="own"), *family], [NamedCost("0.1", 0.1)])
    results = list(compare([trace(call([1, 2, 3, 9] * 4)), trace(call([7, 7]))], plan))
    speedups, relative = summary_grids(results, plan)
    # a family of many shows its first member and its best
    assert speedups.headings == [
        "priced speedup at cost 0.1",
        "own",
        "fixed-1",
        "Arctic, best of 4 in hindsight",
    ]
    own, best = 4 / 1.3, 4 / 1.3
    assert speedups.rows[0][1:] == [f"{own:.3f}", f"{4 / 3 / 1.1:.3f}", f"{best:.3f}"]
    assert speedups.rows[1][1:] == [f"{1 / 1.3:.3f}", f"{1 / 1.1:.3f}", f"{1 / 1.1:.3f}"]
    assert [row[1] for row in relative.rows] == ["1.000", f"{1.1 / 1.3:.3f}"]
    assert relative.summaries[-1] == ["lowest", f"{1.1 / 1.3:.3f}"]


def test_warm_calls_are_seen_but_not_counted_and_traces_start_cold() -> None:
    plan = Plan([counting()], [NamedCost("0.1", 0.1)])
    traces = [trace(call([1, 2]), warming=(call([3]), call([4]))), trace(call([1, 2]))]
    cold = list(compare(traces, plan))
    assert [r.runs[0].rates["memory_bytes"] for r in cold] == [3, 1]
    assert [r.runs[0].rates["calls"] for r in cold] == [1, 1]
    assert cold[0].runs[0].timeline[0][0] == 2  # tokens written before
    warm = list(compare(traces, Plan([counting()], plan.costs, keep_warm=True)))
    assert [r.runs[0].rates["memory_bytes"] for r in warm] == [3, 4]


def test_a_method_that_studies_is_not_replayed_over_what_warms() -> None:
    seen: list[str] = []

    class Student(Method):
        def study(self, texts: Any) -> None:
            seen.append(f"studies {sum(len(text) for text in texts)}")

        def begin(self, prompt: TokenArray, agent: str) -> None:
            seen.append("begins")

        def draft(self) -> Draft:
            return Draft.empty()

        def accept(self, token_ids: TokenArray, accepted: int) -> None:
            pass

        def end(self) -> None:
            pass

        def memory_bytes(self) -> int:
            return 0

    spec = MethodSpec("s", "s", "", 4, lambda _: Student(), studies=True, swept=False)
    call = Call("", "", np.zeros(0, np.int32), np.arange(5, dtype=np.int32))
    for warming, expected in (((call, call), ["studies 10", "begins"]), ((), [])):
        trace = Trace("t", Path("t"), "prose", [call], list(warming))
        result = next(compare([trace], Plan([spec], [NamedCost("0.05", 0.05)])))
        assert seen == expected
        assert len(result.runs) == len(expected) // 2
        seen.clear()


def test_our_own_engine_gains_from_a_warm_start() -> None:
    answer = [int(x) for x in np.random.default_rng(3).integers(0, 50_000, 200)]
    plan = Plan([known_methods()["ours-linear"]], [NamedCost("0.05", 0.05)])
    cold, warm = compare([trace(call(answer)), trace(call(answer), warming=(call(answer),))], plan)
    assert cold.runs[0].rates["mean_accepted_tokens"] < 1.1
    assert warm.runs[0].rates["mean_accepted_tokens"] > 3


def test_a_sweep_compares_widths() -> None:
    (result,) = compare([trace(call([1] * 20))], Plan([counting()], [NamedCost("0.1", 0.1)], sweep=(1, 4)))
    swept = {run.k: run.rates["acceptance_rate"] for run in result.runs if run.sweep}
    assert swept == {1: 1.0, 4: 0.25}


def test_geometric_mean() -> None:
    assert geometric_mean([2, 8]) == pytest.approx(4)
    assert geometric_mean([]) == 0
    assert geometric_mean([1, 0]) == 0


# -------------------------------------------------------------------------------------------- calibration


def test_reliability_of_honest_and_of_boastful_probabilities() -> None:
    rng = np.random.default_rng(5)
    p = rng.random(20_000)
    honest = reliability(p, rng.random(20_000) < p)
    assert honest is not None
    assert [b.count for b in honest.bins] == [1000] * 20
    assert honest.ece < 0.02
    boastful = reliability(np.ones(10), [1] * 4 + [0] * 6)
    assert boastful is not None
    assert boastful.bins == (ReliabilityBin(1.0, 0.4, 10),)
    assert (boastful.ece, boastful.largest_gap) == (pytest.approx(0.6), pytest.approx(0.6))
    assert reliability([], []) is None


def test_equal_probabilities_share_a_bin() -> None:
    found = reliability([0.2] * 50 + [0.9] * 50, [0] * 50 + [1] * 50)
    assert found is not None
    assert [(round(b.predicted, 6), b.observed, b.count) for b in found.bins] == [(0.2, 0, 50), (0.9, 1, 50)]
    assert found.ece == pytest.approx(0.15)


def test_paths_are_judged_and_not_single_tokens() -> None:
    calibration = Calibration()
    #              a      b under a   c under a
    calibration.add([-1, 0, 0], [0.5, 0.5, 0.25], [0, 2])
    calibration.add([-1], [float("nan")], [])  # a method without probabilities
    assert len(calibration) == 3
    found = calibration.reliability()
    assert found is not None
    assert {(b.predicted, b.observed) for b in found.bins} == {(0.125, 1), (0.25, 0), (0.5, 1)}


def test_pooled_bins_keep_the_means() -> None:
    bins = [ReliabilityBin(i / 10, i / 20, 100) for i in range(10)]
    points = pooled(bins, 5)
    assert len(points) == 5
    assert points[0] == (pytest.approx(0.05), pytest.approx(0.025))


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
    assert len(load_trace(log, None, Selection(train=0.5)).warming) == 2
    shuffled = firsts(Selection(shuffle=True, seed=1))
    assert sorted(shuffled) == [0, 1, 2, 3, 4]
    assert shuffled == firsts(Selection(shuffle=True, seed=1)) != firsts(Selection(shuffle=True, seed=2))
    with pytest.raises(InvalidInputError, match=r"a \(2 calls\), b \(3 calls\)"):
        load_trace(log, None, Selection(agents=("nobody",)))


def test_agents_of_one_log_are_written_with_its_name() -> None:
    wanted = ["x", "sql=gpt-4", "sql=gpt-5", "odd=name"]
    assert split_agents(wanted, ["sql", "chat"]) == (("x", "odd=name"), {"sql": ("gpt-4", "gpt-5")})


def test_other_logs_can_warm(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", records("a", "a"))
    other = write_log(tmp_path / "other.jsonl", records("b", "b", "b"))
    (one,) = load_traces([log], [other], None, Selection(train=0.5))
    assert (len(one.warming), len(one.calls)) == (4, 1)


def test_a_directory_is_its_logs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "tokenizer.json.gz", "notes.md"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in find_logs([tmp_path])] == ["a.jsonl.gz", "b.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="no log in the directory"):
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


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "suffixsvc.cli", "bench", "replay", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
    )


OURS = ("--method", "ours-linear", "--method", "ours-tree", "--method", "prompt-lookup")


def test_people_get_tables_and_a_page(tmp_path: Path) -> None:
    other = write_log(tmp_path / "other.jsonl", records(*"aaaaaa", tokens=60))
    page = tmp_path / "out.html"
    result = run(str(SAMPLE), str(other), *OURS, "--report", str(page), "--seed", "7", "--max-calls", "8")
    assert result.returncode == 0, result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "replaying 1/2 recorded_demo",
        "replaying 2/2 other",
    ]
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


def test_machines_get_everything(tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps({"seconds": [0, 0.02, 0.03, 0.04, 0.05, 0.044]}))  # as the driver keeps it
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
    assert max(map(int, ours["curve"]["widths"])) <= 4, "a curve without a price for 5 tokens"
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
    def figures() -> Any:
        (one,) = json.loads(run(str(SAMPLE), *OURS, "--json", "--max-calls", "15", "--shuffle").stdout)[
            "traces"
        ]
        return [(run["method"], run["cost"], run["speedups"], run["widths"]) for run in one["runs"]]

    assert figures() == figures()


@pytest.mark.parametrize("verb", [["replay"], ["bench", "replay", "--method", "prompt-lookup"]])
def test_texts_are_encoded_with_a_gguf(verb: list[str], tmp_path: Path) -> None:
    """Both verbs refused the GGUF that `build` takes: "Cannot instantiate Tokenizer from buffer"."""
    log = write_log(tmp_path / "texts.jsonl", [{"prompt": "q", "response": "an answer"}] * 2)
    for codec in (write_gguf(tmp_path / "m.gguf"), write_tokenizer(tmp_path / "t.json")):
        command = [
            sys.executable,
            "-m",
            "suffixsvc.cli",
            *verb,
            str(log),
            "--tokenizer",
            str(codec),
            "--json",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert set(re.findall(r'"tokens": (\d+)', ran.stdout)) == {"18"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "a log or a directory of logs"),
        (["gone.jsonl"], "gone.jsonl"),
        (["empty.jsonl"], "an empty log"),
        (["texts.jsonl"], "--tokenizer"),
        (["ids.jsonl", "--method", "nonsense"], "ours-linear"),
        (["ids.jsonl", "--agent", "nobody"], "a call of nobody with a response; got calls of sql (3 calls)"),
        (["ids.jsonl", "--cost-curve", "milliseconds.json"], "Divide the curve by its entry 1"),
        (["ids.jsonl", "--report", "nowhere/out.html"], "a file in a folder that can be"),
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
def test_mistakes_are_one_message_and_write_nothing(arguments: list[str], says: str, tmp_path: Path) -> None:
    write_log(tmp_path / "ids.jsonl", records("sql", "sql", "sql"))
    write_log(tmp_path / "texts.jsonl", [{"response": "abc"}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "milliseconds.json").write_text("[0, 29.5, 44.1]")
    (tmp_path / "nan.json").write_text("[0, 1, NaN]")
    (tmp_path / "short.json").write_text("[]")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stdout
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_methods_are_listed() -> None:
    result = run("--methods")
    assert result.returncode == 0
    for key in ("ours-auto", "prompt-lookup-vllm", "ngram-cache", "ngram-mod"):
        assert key in result.stdout
