"""Properties of a machine that matter to decoding on its CPUs, with advice for each.

The advice follows the project's measurements (docs/driver.md): one thread per physical core and never more,
since llama.cpp's threads spin; OMP_NUM_THREADS=1; memory interleaved over NUMA nodes. Huge pages had no
effect.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MachineNote:
    """A note on one property of the machine.

    Attributes:
        what: "cores", "threads", "quota", "numa", "openmp" or "huge pages".
        found: its value, in words.
        advice: a recommended change; "" if none is needed.
    """

    what: str
    found: str
    advice: str = ""


def inspect_machine(
    threads: int, *, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> list[MachineNote]:
    """Return notes on the machine for decoding with ``threads`` threads.

    Args:
        environment: environment variables of the process.
        root: root of the file system that has /proc and /sys.
    """
    logical, physical = _logical_cores(root), physical_cores(root)
    found, advice = f"{physical} physical ones, none seen twice", ""
    if logical > physical:
        found = f"{physical} physical ones, seen as {logical} (SMT)"
        advice = f"never more than {physical} threads: two threads on one core slow each other down"
    notes = [MachineNote("cores", found, advice)]
    advice = "" if threads == physical else f"{physical} would be faster if nothing else runs here"
    if threads > physical:
        advice = f"take {physical}: llama.cpp's threads spin, and timings collapse where they share cores"
    notes.append(MachineNote("threads", f"{threads}, on {physical} cores", advice))
    quota = _quota(root)
    if quota is not None:
        advice = f"take at most {max(1, int(quota))} threads" if threads > quota else ""
        notes.append(MachineNote("quota", f"this process may use {quota:.1f} cores", advice))
    nodes = len(list(root.glob("sys/devices/system/node/node[0-9]*")))
    if nodes > 1:
        advice = "start with numactl --interleave=all, or bind to one node"
        notes.append(MachineNote("numa", f"{nodes} nodes", advice))
    omp = environment.get("OMP_NUM_THREADS", "")
    advice = "" if omp == "1" else "set OMP_NUM_THREADS=1 where llama.cpp was built with OpenMP"
    found = f"OMP_NUM_THREADS={omp}" if omp else "OMP_NUM_THREADS is not set"
    notes.append(MachineNote("openmp", found, advice))
    # the selected value is in brackets
    pages = _read(root / "sys/kernel/mm/transparent_hugepage/enabled").partition("[")[2].partition("]")[0]
    if pages:
        notes.append(MachineNote("huge pages", f"{pages} (they gained nothing where it was tried)"))
    return notes


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, at least 1.

    SMT siblings count once, cores outside the affinity mask do not count, and a control group's quota limits
    the number to its whole cores: threads beyond it would be throttled while others spin.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cores, quota = physical_cores(root, allowed), _quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def physical_cores(root: Path = Path("/"), allowed: Collection[int] | None = None) -> int:
    """Return the number of physical cores; of logical ones if the system does not list SMT siblings.

    Args:
        allowed: numbers of the logical cores that count. None = all.
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


def _quota(root: Path) -> float | None:
    """The lowest quota, in cores, of the process's control group and those above it (cgroup v2 or v1)."""
    quotas = [quota for group in _groups(root) if (quota := _quota_of(group)) is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that limit this process, its own first; in a container, its own is the root."""
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
