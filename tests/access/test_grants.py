"""Grants, against a brute-force oracle, and policy files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.access.grants import Grant, Grants
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.access.principals import EVERY, OPERATOR, Right
from suffixsvc.errors import InvalidConfigError

NAMES = ("a", "b", "ab")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
GRANTS = st.lists(
    st.builds(
        Grant,
        st.sampled_from((*NAMES, EVERY)),
        st.sampled_from(list(Right)),
        st.one_of(PATHS, st.just(EVERY)),
    ),
    max_size=6,
)
INCLUDED: Mapping[Right, set[Right]] = {
    Right.READ: {Right.READ},
    Right.WRITE: {Right.WRITE},
    Right.FOLLOW: {Right.READ, Right.FOLLOW},
    Right.ADMIN: set(Right),
}


def _oracle(grants: list[Grant], public: dict[str, Right], principal: str, path: str) -> set[Right]:
    found: set[Right] = set()
    if f"{path}/".startswith(f"{principal}/"):
        found = set(Right)
    for grant in [*grants, *(Grant(EVERY, right, each) for each, right in public.items())]:
        of_principal = grant.principal in (principal, EVERY)
        if of_principal and (grant.path == EVERY or f"{path}/".startswith(f"{grant.path}/")):
            found |= INCLUDED[grant.right]
    return found


@given(
    GRANTS,
    st.dictionaries(PATHS, st.sampled_from([Right.READ, Right.FOLLOW]), max_size=2),
    st.sampled_from(NAMES),
    PATHS,
)
def test_rights_are_those_of_the_oracle(
    grants: list[Grant], public: dict[str, Right], principal: str, path: str
) -> None:
    built = Grants(grants).with_public(public)
    expected = _oracle(grants, public, principal, path)
    assert built.rights(principal, path) == expected
    assert {r for g in built.of(principal, path) for r in g.right.includes} == expected
    for right in Right:
        everywhere = any(
            right in INCLUDED[g.right] and g.path == EVERY and g.principal in (principal, EVERY)
            for g in grants
        )
        assert built.everywhere(principal, right) is everywhere
    assert built.rights(OPERATOR, path) == set(Right)


POLICY = """
[namespaces."acme"]
ttl = "30d"

[principals."sql"]
read = ["acme/shared"]
write = ["acme/shared/sql"]
certificates = ["sql.acme.example"]

[principals."auditor"]
follow = ["*"]

[principals."*"]
read = ["public"]
"""


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policies.toml"
    path.write_text(text)
    return path


def test_a_policy_file(tmp_path: Path) -> None:
    read = read_policy_file(_file(tmp_path, POLICY))
    access = read.access
    assert access.required
    assert access.principals == ("sql", "auditor")
    assert access.certificates == {"sql.acme.example": "sql"}
    assert access.grants.rights("sql", "acme/shared/sql/x") == {Right.READ, Right.WRITE}
    assert access.grants.rights("sql", "acme") == set()
    assert access.grants.rights("auditor", "sql") == {Right.READ, Right.FOLLOW}
    assert access.grants.rights("other", "public/x") == {Right.READ}
    assert read.policies.of("acme/x").ttl_seconds == 30 * 86_400


def test_without_principals_callers_need_no_identity(tmp_path: Path) -> None:
    assert not read_policy_file(_file(tmp_path, "[default]\nttl = 5\n")).access.required
    assert read_policy_file(_file(tmp_path, "[principals]\n")).access.required


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[principals."a/b"]', "must be a name"),
        ('[principals."a"]\nread = ["x//y"]', "read must be paths"),
        ('[principals."a"]\nread = "x"', "read"),
        ('[principals."a"]\nown = true', "own"),
        ('[principals."*"]\ncertificates = ["x"]', "must not have certificates"),
        ('[principals."a"]\ncertificates = [" x"]', "certificates must be names"),
        (
            '[principals."a"]\ncertificates=["x"]\n[principals."b"]\ncertificates=["x"]',
            "must not share certificates",
        ),
        ("[default]\nmatch = 20", "default.match must be a term of a policy that publishes"),
        (
            '[namespaces."a/b"]\npublish_every = "1m"\n[namespaces."a/c"]\nmin_principals = 2',
            r"namespaces.\"a/b\".publish_every must be a term",
        ),
    ],
)
def test_an_invalid_policy_is_refused_whole(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as raised:
        read_policy_file(_file(tmp_path, text))
    assert "policies.toml" in str(raised.value)


@pytest.mark.parametrize("publishing", ["a", "a/b", "a/b/c"])
def test_terms_of_published_runs_above_or_below_the_policy_that_publishes(
    tmp_path: Path, publishing: str
) -> None:
    tables = {"a/b": "match = 20\n", publishing: "min_principals = 2\n"}
    if publishing == "a/b":
        tables = {"a/b": "match = 20\nmin_principals = 2\n"}
    text = "".join(f'[namespaces."{path}"]\n{terms}' for path, terms in tables.items())
    terms = read_policy_file(_file(tmp_path, text)).policies.of("a/b/c/d").publishing
    assert terms is not None
    assert (terms.min_principals, terms.match) == (2, 20)
