"""What of a machine matters to a model that decodes on its processors, and what is known about each.

Advice is what the project's research found (docs/driver.md): one thread a physical core and never more, since
llama.cpp's threads spin; OMP_NUM_THREADS=1; memory interleaved over NUMA nodes; huge pages gained nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MachineNote", "look_at_machine", "physical_cores", "usable_cores"]


@dataclass(frozen=True, slots=True)
class MachineNote:
    """One thing about the machine.

    Attributes:
        what: "cores", "threads", "quota", "numa", "openmp" or "huge pages".
        found: in words.
        advice: what to do about it; "" where all is well.
    """

    what: str
    found: str
    advice: str = ""


def look_at_machine(
    threads: int, *, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> list[MachineNote]:
    """What matters to decoding with so many threads.

    Args:
        root: of the file system that /proc and /sys are read from.
    """
    logical = _logical_cores(root)
    physical = physical_cores(root)
    notes = [_cores(logical, physical), _threads(threads, physical)]
    quota = _quota(root)
    if quota is not None:
        advice = f"take at most {max(1, int(quota))} threads" if threads > quota else ""
        notes.append(MachineNote("quota", f"this process may use {quota:.1f} cores", advice))
    nodes = len(list(root.glob("sys/devices/system/node/node[0-9]*")))
    if nodes > 1:
        notes.append(
            MachineNote("numa", f"{nodes} nodes", "start with numactl --interleave=all, or bind to one node")
        )
    omp = environment.get("OMP_NUM_THREADS", "")
    notes.append(
        MachineNote(
            "openmp",
            f"OMP_NUM_THREADS={omp}" if omp else "OMP_NUM_THREADS is not set",
            "" if omp == "1" else "set OMP_NUM_THREADS=1 where llama.cpp was built with OpenMP",
        )
    )
    pages = _chosen(_read(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    if pages:
        notes.append(MachineNote("huge pages", f"{pages} (they gained nothing where it was tried)"))
    return notes


def usable_cores(root: Path = Path("/")) -> int:
    """Physical cores this process may use: llama.cpp's threads spin, so one a core is the most that helps.

    Halves of one core (SMT) count once, cores outside of the affinity mask not at all, and no more than the
    whole cores that a control group's quota pays for: threads beyond it would be stopped while others wait.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cores, quota = physical_cores(root, allowed), _quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def physical_cores(root: Path = Path("/"), allowed: Collection[int] | None = None) -> int:
    """Cores that are not two halves of one; as many as the system says where it does not tell.

    Args:
        allowed: numbers of logical ones; no others count. None = all.
    """
    siblings = {
        _read(cpu / "topology/thread_siblings_list") or _read(cpu / "topology/core_cpus_list")
        for cpu in _cpus(root)
        if allowed is None or int(cpu.name.removeprefix("cpu")) in allowed
    }
    siblings.discard("")
    return len(siblings) or (_logical_cores(root) if allowed is None else max(1, len(allowed)))


def _logical_cores(root: Path) -> int:
    return len(_cpus(root)) or os.cpu_count() or 1


def _cpus(root: Path) -> list[Path]:
    return [
        cpu for cpu in root.glob("sys/devices/system/cpu/cpu[0-9]*") if _read(cpu / "online") != "0"
    ]  # fmt: skip


def _cores(logical: int, physical: int) -> MachineNote:
    if logical > physical:
        return MachineNote(
            "cores",
            f"{physical} physical ones, seen as {logical} (SMT)",
            f"never more than {physical} threads: two threads on one core slow each other down",
        )
    return MachineNote("cores", f"{physical} physical ones, none seen twice")


def _threads(threads: int, physical: int) -> MachineNote:
    if threads > physical:
        return MachineNote(
            "threads",
            f"{threads}, on {physical} cores",
            f"take {physical}: llama.cpp's threads spin, and timings collapse where they share cores",
        )
    fewer = "" if threads == physical else f"{physical} would be faster if nothing else runs here"
    return MachineNote("threads", f"{threads}, on {physical} cores", fewer)


def _quota(root: Path) -> float | None:
    """Cores that the process's control group allows, or one above it (cgroup v2, or v1); None: no limit."""
    quotas = [quota for group in _groups(root) if (quota := _quota_of(group)) is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that limit this process, its own first. A container sees its own as the root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        steps = [step for step in name.split("/") if step not in ("", "..")]
        for depth in range(len(steps), 0, -1):
            yield mount.joinpath(*steps[:depth])
    yield root / "sys/fs/cgroup"
    yield root / "sys/fs/cgroup/cpu"


def _quota_of(group: Path) -> float | None:
    limits = _read(group / "cpu.max").split()
    if len(limits) != 2:
        limits = [_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")]
    with suppress(ValueError, ZeroDivisionError):
        quota = int(limits[0]) / int(limits[1])
        return quota if quota > 0 else None
    return None


def _chosen(line: str) -> str:
    """The word in brackets."""
    return line.partition("[")[2].partition("]")[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
