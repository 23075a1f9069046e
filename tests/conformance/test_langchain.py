"""LangChain's standard tests of a chat model: its ChatOpenAI with nothing changed but ``base_url``."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from support.conformance import MODEL, Endpoint
from support.serving import PATIENCE_S

pytestmark = pytest.mark.conformance("langchain-tests 1.1.9, ChatOpenAI")


class TestChatOpenAIUnit(ChatModelUnitTests):
    """Without a server."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": "http://127.0.0.1:9/v1"}


class TestChatOpenAI(ChatModelIntegrationTests):
    """With the server."""

    @pytest.fixture(autouse=True)
    def _at(self, endpoint: Endpoint) -> None:
        self.base_url = endpoint.base_url

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": self.base_url, "api_key": "any", "timeout": PATIENCE_S}

    @property
    def supports_json_mode(self) -> bool:
        return True
