"""Tests of llm-comply, one at a time, against a server of this machine.

Its skipped tests are of models with a reasoning summary.
"""

from __future__ import annotations

import functools
from importlib import resources

from llm_comply.config import ComplianceConfig
from llm_comply.result import TestResult, TestStatus
from llm_comply.runner import TestRunner
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

from support.serving import PATIENCE_S

CHAT, RESPONSES = "openai-chat", "open-responses"
#: tests that a server of text models must fail, with status 400
IMAGES = {CHAT: "chat-image-input", RESPONSES: "image-input"}
_SPECS = {CHAT: "openai_chat.json", RESPONSES: "openresponses.json"}
PASSED = TestStatus.PASSED


def cases(form: str) -> list[str]:
    """Names of the tests of a format that run."""
    config = ComplianceConfig("", "")
    return [each.id for each in get_tests(form) if not (each.skip_reason and each.skip_reason(config))]


def result_of(form: str, case: str, address: str, model: str) -> TestResult:
    """Run one test; the result has the body, or the events of a stream."""
    config = ComplianceConfig(f"http://{address}/v1", "any", model, verbose=True, timeout=PATIENCE_S)
    [test] = [each for each in get_tests(form) if each.id == case]
    return TestRunner(config, [test], _spec(form)).run_one(test)


def check(form: str, case: str, address: str, model: str) -> TestResult:
    """Run one test and assert that it passes, or that the refusal of images says why."""
    result = result_of(form, case, address, model)
    if case == IMAGES[form]:
        error = result.response["error"]
        assert "HTTP 400" in result.errors[0], result
        assert "image" in error["message"], error
        assert error["type"] == "invalid_request_error"
        assert error["param"]
        return result
    assert result.status is PASSED, (result.errors, result.response, result.stream_events)
    return result


@functools.cache
def _spec(form: str) -> SpecLoader:
    return SpecLoader(str(resources.files("llm_comply") / "specs" / _SPECS[form]))
