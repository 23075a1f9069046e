"""Chat templates of model files over a socket: variables, BOS, and templates that cannot be used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import openai
from support.openai_serving import client_of, running, settings_of
from support.serving import PATIENCE_S
from support.tiny_script import write_tiny_script
from support.tool_requests import ASK

ANSWERS = {"Q": ("Yes, ", "I do."), "N": ("No, I ", "do not.")}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def chat(client: openai.OpenAI, **fields: Any) -> str | None:
    given: dict[str, Any] = {"model": "script", "messages": ASK, "temperature": 0, **fields}
    return client.chat.completions.create(**given).choices[0].message.content


def test_a_template_gets_its_variables(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{{ 'N' if enable_thinking is false else 'Q' }}"
    path = write_tiny_script(tmp_path / "script.gguf", ANSWERS, template=template)
    with running(settings_of(path)) as server, client_of(server) as client:
        assert chat(client) == "Yes, I do."
        assert (
            chat(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == "No, I do not."
        )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for message in messages %}", "Jinja template"),
        (f"{ENDLESS}Q", "CPU time"),
        ("{{ 'x' * 2000000000 }}Q", "MiB|characters"),
        ("{{ ''.__class__.__mro__ }}{{ raise_exception('roles must alternate') }}Q", "alternate|unsafe"),
        ("{{ messages[0].content.missing.name }}Q", "undefined|error in the template"),
        ("", "Yes"),
    ],
    ids=["syntax", "endless", "large", "refusing", "failing", "none"],
)
def test_a_template_that_cannot_be_used_is_400_and_texts_are_completed(
    tmp_path: Path, template: str, message: str
) -> None:
    path = write_tiny_script(tmp_path / "script.gguf", {**ANSWERS, "\n": ANSWERS["Q"]}, template=template)
    with running(settings_of(path)) as server, client_of(server) as client:
        began = time.monotonic()
        if template:
            with pytest.raises(openai.BadRequestError, match=message) as caught:
                chat(client)
            assert caught.value.param == "messages"
        else:
            assert chat(client) == "Yes, I do.", "ChatML"
        assert time.monotonic() - began < PATIENCE_S / 2
        text = client.completions.create(model="script", prompt="Q", temperature=0)
        assert text.choices[0].text == "Yes, I do."
        assert client.models.list().data[0].id == "script"


def test_a_message_that_takes_long_to_render_is_400_and_others_are_answered(tmp_path: Path) -> None:
    """The work depends on the message."""
    loop = "{% if 'slow' in messages[0].content %}" + ENDLESS + "{% endif %}Q"
    path = write_tiny_script(tmp_path / "script.gguf", ANSWERS, template=loop)
    with running(settings_of(path)) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError, match="CPU time") as caught:
            chat(client, messages=[{"role": "user", "content": "slow"}])
        assert caught.value.param == "messages"
        assert chat(client) == "Yes, I do."
