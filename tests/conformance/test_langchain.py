"""LangChain's standard integration tests of a chat model: its ChatOpenAI; only ``base_url`` is changed.

Skipped: images, audio, files, and a recording of HTTP calls.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from support.conformance import MODEL, Endpoint
from support.serving import PATIENCE_S

pytestmark = pytest.mark.conformance("langchain-tests 1.1.9, ChatOpenAI")


class TestChatOpenAI(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _at(self, endpoint: Endpoint) -> None:
        self.base_url = endpoint.base_url

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # Usage of streams is off by default where base_url is given. At temperature 0 the small model tells
        # a joke that does not end before the context is full; a seed makes it the same one every time.
        return {
            "model": MODEL, "base_url": self.base_url, "api_key": "any", "timeout": PATIENCE_S,
            "stream_usage": True, "temperature": 0.5, "seed": 1,
        }  # fmt: skip

    @property
    def model_override_value(self) -> str:
        """The server has one model, which a request may name."""
        return MODEL

    @property
    def supports_json_mode(self) -> bool:
        return True
