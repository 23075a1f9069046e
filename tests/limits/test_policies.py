"""Policies on paths: effective settings of a namespace, and errors of invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc import Policies, Policy
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.errors import InvalidConfigError, InvalidNamespaceError
from suffixsvc.policies import UNLIMITED, PublishTerms

EXAMPLE = """
[default]
max_bytes = "4 GiB"

[namespaces."acme"]
ttl = "30d"

[namespaces."acme/qwen2.5-coder"]
max_bytes = "1 GiB"

[namespaces."acme/qwen2.5-coder/docs"]
pinned = true
"""


def load(tmp_path: Path, text: str | bytes) -> Policies:
    file = tmp_path / "policies.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_policy_file(file).policies


def test_the_example_of_the_module_holds(tmp_path: Path) -> None:
    policies = load(tmp_path, EXAMPLE)
    assert policies.of("other") == Policy(max_bytes=4 << 30)
    assert policies.of("acme") == policies.of("acme/llama") == Policy(4 << 30, 30 * 86_400)
    assert policies.of("acme/qwen2.5-coder") == Policy(1 << 30, 30 * 86_400)
    assert policies.of("acme/qwen2.5-coder/docs/x") == Policy(1 << 30, 30 * 86_400, True)


def test_a_path_is_above_another_by_whole_segments_only() -> None:
    policies = Policies({"acme": Policy(max_bytes=10)})
    assert policies.of("acme/x").max_bytes == 10
    assert policies.of("acmeville").max_bytes is None
    assert policies.of("x/acme").max_bytes is None


def test_a_limit_set_further_up_can_be_ended() -> None:
    policies = Policies({"a": Policy(10, 60, True), "a/b": Policy(UNLIMITED, 0, False)})
    assert policies.of("a/b/c") == Policy(UNLIMITED, 0, False)


SEGMENTS = st.sampled_from(["a", "b", "ab"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
POLICIES = st.builds(
    Policy,
    max_bytes=st.none() | st.integers(1, 9),
    ttl_seconds=st.none() | st.integers(0, 9),
    pinned=st.none() | st.booleans(),
    min_principals=st.none() | st.sampled_from([0, 2, 3]),
    match=st.none() | st.integers(8, 10),
)


def test_published_runs_have_defaults_and_can_be_ended_below(tmp_path: Path) -> None:
    policies = load(
        tmp_path,
        """
        [namespaces."pool"]
        min_principals = 3
        [namespaces."pool/often"]
        match = 32
        publish_every = "1m"
        [namespaces."pool/open"]
        min_principals = 0
        """,
    )
    assert policies.publishes
    assert policies.of("pool/x").publishing == PublishTerms(3, 16, 300)
    assert policies.of("pool/often").publishing == PublishTerms(3, 32, 60)
    assert policies.of("pool/open").publishing is None
    assert policies.of("other").publishing is None
    assert not Policies({"a": Policy(match=8)}).publishes


@given(st.dictionaries(PATHS, POLICIES), POLICIES, PATHS)
def test_of_every_field_the_nearest_setting_wins(
    of_paths: dict[str, Policy], default: Policy, path: str
) -> None:
    """Compared with the definition: walk up from the path to the first setting."""
    got = Policies(of_paths, default).of(path)
    parts = path.split("/")
    upwards = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    for field in ("max_bytes", "ttl_seconds", "pinned", "min_principals", "match"):
        said = [getattr(of_paths[p], field) for p in upwards if p in of_paths]
        said.append(getattr(default, field))
        assert getattr(got, field) == next((value for value in said if value is not None), None)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", None), ("7 B", 7), ("2 kB", None), ("2 KB", 2000), ("3 MiB", 3 << 20), ("5GB", 5 * 10**9)],
)
def test_sizes(tmp_path: Path, text: str, size: int | None) -> None:
    told = f'[default]\nmax_bytes = "{text}"'
    if size is None:
        with pytest.raises(InvalidConfigError, match=r"default\.max_bytes"):
            load(tmp_path, told)
    else:
        assert load(tmp_path, told).of("x").max_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ('"30m"', 1800), ('"12 h"', 43_200), ("0", 0)])
def test_times(tmp_path: Path, text: str, seconds: int) -> None:
    assert load(tmp_path, f"[default]\nttl = {text}").of("x").ttl_seconds == seconds


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a = = 1", "at line 1, column 5"),
        ("[default]\nmax_bytes = 1\nmax_bytes = 2", "Cannot overwrite"),
        (b"[default]\n# \xff", "valid TOML"),
        ("[defualt]", "defualt"),
        ("default = 1", "at default; expected a table"),
        ("namespaces = 1", "at namespaces; expected a table"),
        ("[default]\nmax_byte = 1", "default.max_byte"),
        ("[default]\nmax_bytes = 0", "default.max_bytes"),
        ("[default]\nmax_bytes = -1", "default.max_bytes"),
        ("[default]\nmax_bytes = true", "default.max_bytes"),
        ("[default]\nmax_bytes = 1.5", "default.max_bytes"),
        ("[default]\nmax_bytes = inf", "default.max_bytes"),
        ('[default]\nmax_bytes = "99999999999 TiB"', "default.max_bytes"),
        ("[default]\nttl = -1", "default.ttl"),
        ('[default]\nttl = "1w"', "default.ttl"),
        ("[default]\nttl = 2025-01-01", "default.ttl"),
        ("[default]\npinned = 1", "default.pinned"),
        ("[default]\nmin_principals = 1", "default.min_principals"),
        ("[default]\nmin_principals = true", "default.min_principals"),
        ("[default]\nmin_principals = -2", "default.min_principals"),
        ('[namespaces."a"]\nmin_principals = "3"', "namespaces.a.min_principals"),
        ("[default]\nmatch = 7", "default.match"),
        ("[default]\nmatch = 8.0", "default.match"),
        ("[default]\npublish_every = 0", "default.publish_every"),
        ('[default]\npublish_every = "5 minutes"', "default.publish_every"),
        ('[namespaces."a//b"]\npinned = true', 'namespaces."a//b"'),
        ('[namespaces."*"]\ndrafting = false', "under [default]"),
        ('[namespaces."a"]\npinned = "yes"', "namespaces.a.pinned"),
        ("[namespaces.a.b]\npinned = true", "stands in quotes"),
    ],
)
def test_a_bad_file_is_refused_by_line_or_key(tmp_path: Path, text: str | bytes, named: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(tmp_path, text)
    assert named in str(caught.value)
    assert "policies.toml" in str(caught.value)
    assert caught.value.expected is not None
    assert caught.value.got is not None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="No such file"):
        read_policy_file(tmp_path / "none.toml")
    with pytest.raises(InvalidConfigError, match="directory"):
        read_policy_file(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_bytes": 0},
        {"max_bytes": 1.0},
        {"max_bytes": True},
        {"max_bytes": 2**63},
        {"ttl_seconds": -1},
        {"ttl_seconds": 2**32},
        {"pinned": 1},
        {"min_principals": 1},
        {"min_principals": False},
        {"match": 7},
        {"match": 2**20},
        {"publish_every_seconds": 0},
    ],
)
def test_bad_values_in_python(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError, match=next(iter(bad))):
        Policy(**bad)  # type: ignore[arg-type] # wrong on purpose


def test_bad_policies_in_python() -> None:
    with pytest.raises(InvalidNamespaceError):
        Policies({"a//b": Policy()})
    with pytest.raises(InvalidConfigError):
        Policies({"a": 5})  # type: ignore[dict-item] # wrong on purpose
    with pytest.raises(InvalidConfigError):
        Policies(default={"max_bytes": 5})  # type: ignore[arg-type] # wrong on purpose
