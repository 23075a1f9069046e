"""The small real model. Being here also makes tests/support importable: pytest puts the folder of a conftest
on sys.path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from suffixsvc.errors import ModelNotFoundError

# A test is never timed: how long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Path of smollm2-135m: SUFFIXSVC_TEST_MODEL, or what ``suffixsvc models get`` downloaded."""
    given = os.environ.get("SUFFIXSVC_TEST_MODEL")
    if given:
        return Path(given)
    from suffixsvc_driver import models

    try:
        return models.path("smollm2-135m")
    except ModelNotFoundError as err:
        pytest.skip(f"{err} (suffixsvc models get smollm2-135m)")
