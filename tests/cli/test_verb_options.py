"""Options as fields of a dataclass: what typer shows and what the verb gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer
from typer.testing import CliRunner

from suffixsvc.verb_options import argument, option, with_options


@dataclass(frozen=True, slots=True)
class Options:
    logs: tuple[Path, ...] = argument(help="Logs.")
    calls: int = option(8, min=1, help="Calls.")
    modes: tuple[str, ...] = option(("hot", "cold"), "--mode", help="Mode. Repeatable.")
    agents: tuple[str, ...] = option((), "--agent", help="Agent. Repeatable.")
    sizes: tuple[int, ...] = option("1,2", parse=lambda text: tuple(map(int, text.split(","))), help="Sizes.")
    limits: tuple[int, ...] = option(("3",), "--limit", parse=int, help="Limit. Repeatable.")
    width: int | None = option(None, parse=int, help="Width.")
    name: str | None = option(None, help="Name.")
    programmatic: int = 7


def run(*arguments: str) -> tuple[str, list[tuple[Options, bool]]]:
    app, seen = typer.Typer(add_completion=False), list[tuple[Options, bool]]()

    @app.command()
    @with_options
    def verb(options: Options, fast: bool = False) -> None:
        """what it does."""
        seen.append((options, fast))

    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100", "NO_COLOR": "1"})
    return result.output, seen


def test_without_options_the_verb_gets_the_defaults() -> None:
    _, seen = run("a")
    assert seen == [(Options((Path("a"),)), False)]
    assert seen[0][0] == Options(
        (Path("a"),), 8, ("hot", "cold"), (), (1, 2), (3,), width=None, name=None, programmatic=7
    )


def test_what_is_given_is_converted() -> None:
    repeated = ["--mode", "warm", "--agent", "x", "--agent", "y", "--limit", "4", "--limit", "5"]
    _, seen = run(
        "a", "b", "--calls", "9", *repeated, "--sizes", "6", "--width", "2", "--name", "n", "--fast"
    )
    both = (Path("a"), Path("b"))
    assert seen == [(Options(both, 9, ("warm",), ("x", "y"), (6,), (4, 5), 2, "n"), True)]


def test_the_help_shows_them_and_limits_are_enforced() -> None:
    shown, _ = run("--help")
    for text in ("what it does.", "logs...", "[default: 8]", "[default: 1,2]", "--mode", "--fast"):
        assert text in shown.lower(), shown
    assert "hot" not in shown
    assert "programmatic" not in shown
    assert "calls" in run("a", "--calls", "0")[0]
    assert run()[1] == run("a", "--calls", "0")[1] == []
