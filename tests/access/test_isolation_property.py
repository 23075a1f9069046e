"""Isolation: over random policies and principals, no token reaches a principal without a grant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from suffixsvc.access.grants import Grant
from support.access import ControlledService
from support.isolation import GRANTS, RESTRICTED, check_isolation, isolated_service
from support.long_form import rounds


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledService]:
    with isolated_service(tmp_path_factory.mktemp("isolation")) as service:
        yield service


@settings(max_examples=rounds(10, full=25), suppress_health_check=list(HealthCheck))
@given(GRANTS, RESTRICTED)
def test_no_token_without_a_grant(
    service: ControlledService, grants: list[Grant], restricted: set[str]
) -> None:
    check_isolation(service, grants, restricted)
