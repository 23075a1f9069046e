"""llm-comply, which ``make conformance`` runs on a model that calls tools, on a model with a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.llm_comply_runs import CHAT, RESPONSES, cases, check
from support.openai_serving import running, settings_of
from support.tiny_agent import Line, call_of, write_tiny_agent

# of llm-comply
pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

SCRIPT = (
    call_of("tools", "get_weather", location="San Francisco"),
    Line("'Count' in text", "1 2 3 4 5"),
    Line("true", "Hello."),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = write_tiny_agent(tmp_path_factory.mktemp("comply") / "script.gguf", SCRIPT)
    with running(settings_of(path)) as server:
        yield server.address


@pytest.mark.parametrize("case", cases(CHAT))
def test_chat(address: str, case: str) -> None:
    check(CHAT, case, address, "script")


@pytest.mark.parametrize("case", cases(RESPONSES))
def test_responses(address: str, case: str) -> None:
    check(RESPONSES, case, address, "script")
