"""Tables of `bench http`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from suffixsvc_bench.report.tables import Grid

#: share of a core that an idle process may use
_IDLE: Final = 0.05


def http_parts(measured: Mapping[str, Any]) -> list[Grid | str]:
    """All tables and sentences, from :meth:`Measured.as_dict`."""
    parts: list[Grid | str] = []
    if measured["rows"]:
        parts += [f"One client, over {measured['reference']}:", one_client_grid(measured)]
    if measured["best"]:
        parts += ["suffixsvc over llama-server's fastest mode of each workload:", best_grid(measured)]
    if measured["clients"]:
        clients = measured["options"]["parallel"]
        parts += [f"{clients} clients, generation phase:", clients_grid(measured)]
    if measured["conversations"]:
        parts += ["A conversation, each prompt the whole text so far:", conversation_grid(measured)]
    if measured["schemas"]:
        parts += ["Strict JSON schema on, over off:", schema_grid(measured)]
    parts += failure_sentences(measured)
    if measured["figures"]:
        parts += ["Requirements:", requirements_grid(measured)]
    parts += idle_sentences(measured)
    return parts


def one_client_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each workload and subject."""
    grid = Grid(
        (
            "workload, server",
            "speed (95 %)",
            "median",
            "generation (95 %)",
            "tokens/s",
            "generation tokens/s",
            "acceptance",
            "prompt cached",
            "same / flips / different",
        )
    )
    for row in measured["rows"]:
        agreement = row["agreement"]
        grid.rows.append(
            [
                f"{row['workload']}, {row['subject']}",
                _interval(row["whole"]),
                f"{row['whole']['median']:.2f}" if row["whole"] else "",
                _interval(row["generation"]),
                f"{row['tokens_per_second']:.1f}",
                f"{row['generation_tokens_per_second']:.1f}",
                f"{row['accepted']:,} / {row['drafted']:,}" if row["drafted"] else "",
                f"{row['cached']:.0%}",
                f"{agreement['same']} / {agreement['flips']} / {len(agreement['different'])}",
            ]
        )
    return grid


def best_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each workload."""
    grid = Grid(("workload", "mode", "speed (95 %)", "generation (95 %)", "calls"))
    for row in measured["best"]:
        cells = [_interval(row["whole"]), _interval(row["generation"]), str(row["whole"]["pairs"])]
        grid.rows.append([row["workload"], row["mode"], *cells])
    return grid


def clients_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each subject."""
    grid = Grid(("server", "speed (95 %)", "median", "tokens/s of all clients", "groups"))
    for name, found in measured["clients"].items():
        groups = measured["client_groups"][name]
        speed = sum(each["tokens"] for each in groups) / sum(each["seconds"] for each in groups)
        grid.rows.append(
            [name, _interval(found), f"{found['median']:.2f}", f"{speed:.1f}", str(found["pairs"])]
        )
    return grid


def conversation_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each subject."""
    grid = Grid(("server", "turns", "last prompt", "new tokens", "computed", "computed / new"))
    for name, found in measured["conversations"].items():
        last = found["turns"][-1]["prompt_tokens"]
        counts = [len(found["turns"]), last, found["new"], found["computed"]]
        grid.rows.append([name, *(f"{count:,}" for count in counts), f"{found['ratio']:.3f}"])
    return grid


def schema_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each subject."""
    grid = Grid(("server", "speed (95 %)", "generation (95 %)", "valid JSON"))
    for name, found in measured["schemas"].items():
        ratios, calls = found["ratios"], len(found["pairs"])
        cells = [_interval(ratios.get("whole")), _interval(ratios.get("generation"))]
        grid.rows.append([name, *cells, f"{found['valid']} of {calls}"])
    return grid


def requirements_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each figure."""
    grid = Grid(("figure", "measured", "required", "met"))
    for row in measured["figures"]:
        cells = [row["figure"], row["measured"], row["required"], "yes" if row["met"] else "no"]
        grid.rows.append(cells)
    return grid


def failure_sentences(measured: Mapping[str, Any]) -> list[str]:
    """One sentence for each failure, and for each answer that differs from the driver's."""
    found = [
        f"{subject} failed on {part}: {why}"
        for part, subjects in measured["failed"].items()
        for subject, why in subjects.items()
    ]
    for row in measured["rows"]:
        different: Sequence[str] = row["agreement"]["different"]
        if different:
            found.append(
                f"{row['workload']}, {row['subject']}: other answers than the driver's, beyond near-ties: "
                f"{', '.join(different)}"
            )
    return found


def idle_sentences(measured: Mapping[str, Any]) -> list[str]:
    """CPU use of the processes that were not timed; those above the limit are named."""
    idle: Mapping[str, float] = measured["idle"]
    if not idle:
        return []
    busy = [f"{name} {share:.0%}" for name, share in idle.items() if share > _IDLE]
    if busy:
        return [f"Not idle while others were timed, shares of a core: {', '.join(busy)}."]
    return [f"Idle servers used at most {max(idle.values()):.1%} of a core."]


def _interval(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
