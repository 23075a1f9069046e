"""Calls of tools over a socket, of models whose answers are known: whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.tools.deltas import ParsedCall
from support.openai_serving import client_of, running, settings_of
from support.tiny_script import AGENT_TEMPLATE, write_tiny_script
from support.tool_requests import ASK, TOOLS, function, named

CALL = (
    '<tool_call>\n{"na',
    'me": "get_weather", "argu',
    'ments": {"city": "Ro',
    'me"}}\n',
    "</tool_",
    "call>",
)
TWICE = (*CALL[:-1], 'call>\n<tool_call>\n{"name": "now", "arguments": {}}', "</tool_call>\n")
ROME = '{"city": "Rome"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


def serve(folder: Path, name: str, answers: dict[str, Any], **more: Any) -> Iterator[openai.OpenAI]:
    path = write_tiny_script(folder / f"{name}.gguf", answers, **more)
    with running(settings_of(path)) as server, client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[openai.OpenAI]:
    """Calls get_weather, and answers when it has the result."""
    answers = {"Q": ("Let me see.\n", *CALL), "R": ("It is ", "sunny.")}
    yield from serve(folder, "agent", answers, template=AGENT_TEMPLATE)


@pytest.fixture(scope="module")
def parallel(folder: Path) -> Iterator[openai.OpenAI]:
    """Calls two tools; its file has no template."""
    yield from serve(folder, "parallel", {"\n": TWICE})


@pytest.fixture(scope="module")
def bare(folder: Path) -> Iterator[openai.OpenAI]:
    """Writes a call without a marker."""
    yield from serve(
        folder, "bare", {"\n": ("```json\n{", '"name": "get_weather", "arguments": ', ROME, "}\n```")}
    )


@pytest.fixture(scope="module")
def llama(folder: Path) -> Iterator[openai.OpenAI]:
    """Writes Llama 3's marker, a control token."""
    parts = (
        "<|python_tag|>",
        '{"name": "get_weather", "para',
        'meters": ',
        ROME,
        '}; {"name": "now", "parameters": {}}',
    )
    template = "{{ messages[-1].content }}<|python_tag|>{% if tools %}{{ tools | tojson }}{% endif %}Q"
    yield from serve(folder, "llama", {"Q": parts}, template=template)


def ask(client: openai.OpenAI, model: str, **fields: Any) -> tuple[Any, Any]:
    """The choice of a whole answer, and that of a streamed one; they are equal but for the ids of calls."""
    given: dict[str, Any] = {"model": model, "messages": ASK, "temperature": 0, "tools": TOOLS, **fields}
    whole = client.chat.completions.create(**given).choices[0]
    message, reasons, roles = joined(client.chat.completions.create(**given, stream=True))
    assert reasons == [whole.finish_reason]
    assert roles == ["assistant"]
    assert message["content"] == whole.message.content
    calls = whole.message.tool_calls or []
    assert [(c.name, c.arguments) for c in message["calls"]] == [
        (c.function.name, c.function.arguments) for c in calls
    ]
    ids = {c.id for c in calls} | {c.id for c in message["calls"]}
    assert len(ids) == 2 * len(calls), "every call has an id of its own"
    return whole, message


def joined(stream: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """The message of a stream's chunks, its reasons and roles."""
    content, calls, reasons, roles = None, {}, [], []
    for chunk in stream:
        [choice] = chunk.choices
        delta = choice.delta
        reasons += [choice.finish_reason] if choice.finish_reason else []
        roles += [delta.role] if delta.role else []
        if delta.content is not None:
            content = (content or "") + delta.content
        for call in delta.tool_calls or []:
            if call.id is not None:
                assert call.type == "function"
                assert call.function.arguments == ""
                assert call.index == len(calls)
                calls[call.index] = [call.id, call.function.name, ""]
            else:
                assert call.function.name is None
                calls[call.index][2] += call.function.arguments
    return {"content": content, "calls": [ParsedCall(*call) for call in calls.values()]}, reasons, roles


def names(choice: Any) -> list[str]:
    return [call.function.name for call in choice.message.tool_calls or []]


def test_a_call_is_no_content(agent: openai.OpenAI) -> None:
    choice, _ = ask(agent, "agent")
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert names(choice) == ["get_weather"]
    assert choice.message.tool_calls[0].function.arguments == ROME


def test_content_is_null_where_there_are_only_calls(parallel: openai.OpenAI) -> None:
    choice, message = ask(parallel, "parallel")
    assert names(choice) == ["get_weather", "now"]
    assert choice.message.content is None
    assert message["content"] is None


def test_only_the_first_call_without_parallel_calls(parallel: openai.OpenAI) -> None:
    choice, _ = ask(parallel, "parallel", parallel_tool_calls=False)
    assert names(choice) == ["get_weather"]


def test_a_bare_object_is_a_call_of_a_known_tool(bare: openai.OpenAI) -> None:
    choice, _ = ask(bare, "bare")
    assert (names(choice), choice.message.content) == (["get_weather"], None)
    unknown, _ = ask(bare, "bare", tools=[function("other")])
    assert unknown.finish_reason == "stop"
    assert unknown.message.content.startswith("```json")
    number = {"type": "object", "properties": {"city": {"type": "integer"}}}
    misfit, _ = ask(bare, "bare", tools=[function("get_weather", number)])
    assert not names(misfit)


def test_a_marker_that_is_a_control_token_reaches_the_parser(llama: openai.OpenAI) -> None:
    choice, _ = ask(llama, "llama")
    assert (names(choice), choice.message.content) == (["get_weather", "now"], None)


@pytest.mark.parametrize("speculation", [True, False])
@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("[TOOL_CALLS][ARGS]", ("[TOOL_CALLS]", "now", "[ARGS]", "{}")),
        ("[TOOL_CALLS]", ("[TOOL_CALLS]", '[{"name": "now", ', '"arguments": {}}]')),
        ("<tool_call>", ("<tool_call>", '\n{"name": "now", ', '"arguments": {}}\n', "</tool_call>")),
    ],
    ids=["mistral-v13", "mistral", "hermes"],
)
def test_control_tokens_of_a_format_are_bound_by_their_ids(
    tmp_path: Path, template: str, written: tuple[str, ...], speculation: bool
) -> None:
    control = ("[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>")
    text = "{# " + template + " #}{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}Q"
    path = write_tiny_script(tmp_path / "script.gguf", {"Q": written}, template=text, control=control)
    given: dict[str, Any] = {"tools": [function("now")], "parallel_tool_calls": False}
    given["extra_body"] = {"suffixsvc": {"speculation": speculation}}
    with running(settings_of(path)) as server, client_of(server) as client:
        for choice_of_tool in ("auto", "required", named("now")):
            choice, _ = ask(client, "script", tool_choice=choice_of_tool, **given)
            assert (names(choice), choice.message.content) == (["now"], None)
            assert choice.message.tool_calls[0].function.arguments == "{}"


def test_tools_that_may_not_be_called_are_text(agent: openai.OpenAI) -> None:
    choice, _ = ask(agent, "agent", tool_choice="none")
    assert choice.finish_reason == "stop"
    assert choice.message.content == "Let me see.\n" + "".join(CALL)
    other = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("now")]}}
    choice, _ = ask(agent, "agent", tool_choice=other)
    assert not names(choice)


def test_a_cut_call_is_content(agent: openai.OpenAI) -> None:
    choice, _ = ask(agent, "agent", max_tokens=4)
    assert choice.finish_reason == "length"
    assert choice.message.content == "Let me see.\n" + "".join(CALL[:3])


def test_the_result_of_a_call_is_answered(agent: openai.OpenAI) -> None:
    choice, _ = ask(agent, "agent")
    [call] = choice.message.tool_calls
    history = [
        *ASK,
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "sunny"}]},
    ]
    answer, _ = ask(agent, "agent", messages=history)
    assert (answer.message.content, answer.finish_reason) == ("It is sunny.", "stop")
    without_tools, _ = ask(agent, "agent", messages=history, tools=openai.NOT_GIVEN)
    assert without_tools.message.content == "It is sunny."


def test_several_answers_have_their_own_calls(parallel: openai.OpenAI) -> None:
    answer = parallel.chat.completions.create(model="parallel", messages=ASK, tools=TOOLS, temperature=0, n=2)
    assert [names(choice) for choice in answer.choices] == [["get_weather", "now"]] * 2
    assert len({call.id for choice in answer.choices for call in choice.message.tool_calls or []}) == 4


def test_openais_stream_helper_assembles_calls(parallel: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": "parallel", "messages": ASK, "tools": TOOLS, "temperature": 0}
    with parallel.chat.completions.stream(**given) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert events.count("tool_calls.function.arguments.done") == 2
    [message] = [choice.message for choice in final.choices]
    assert [call.function.name for call in message.tool_calls or []] == ["get_weather", "now"]
    assert message.content is None


@pytest.mark.parametrize("speculation", [True, False])
@pytest.mark.parametrize("client_name", ["agent", "parallel", "llama"])
def test_a_required_call_is_bound_from_the_first_token(
    request: pytest.FixtureRequest, client_name: str, speculation: bool
) -> None:
    """Only names and arguments of a closed schema are left to these models, so their calls end."""
    client: openai.OpenAI = request.getfixturevalue(client_name)
    tools = [function("set_mode", MODE), function("reset")]
    given = {"tools": tools, "extra_body": {"suffixsvc": {"speculation": speculation}}, "max_tokens": 400}
    for choice_of_tool, reason in (("required", "tool_calls"), (named("set_mode"), "stop")):
        choice, message = ask(
            client, client_name, tool_choice=choice_of_tool, parallel_tool_calls=False, **given
        )
        assert choice.finish_reason == reason
        assert choice.message.content is message["content"] is None
        [call] = choice.message.tool_calls
        assert call.function.name in ("set_mode", "reset")
        arguments = json.loads(call.function.arguments)
        if call.function.name == "set_mode":
            assert arguments["mode"] in MODE["properties"]["mode"]["enum"]
            assert set(arguments) <= {"mode", "quiet"}
        if choice_of_tool != "required":
            assert call.function.name == "set_mode"


MODE: dict[str, Any] = {
    "type": "object",
    "properties": {"mode": {"enum": ["automatic heating", "manual cooling"]}, "quiet": {"type": "boolean"}},
    "required": ["mode"],
}


def test_the_grammars_tokens_are_counted(agent: openai.OpenAI) -> None:
    tools = [function("set_mode", MODE)]
    answer = agent.chat.completions.create(
        model="agent", messages=ASK, tools=tools, tool_choice="required", temperature=0, max_tokens=400
    )
    extra: Any = answer.model_extra
    assert extra["metrics"]["speculative_decoding"]["tokens_by_source"]["grammar"] > 0


def test_an_agents_label_is_made_of_its_tools(folder: Path, tmp_path: Path) -> None:
    """Without system prompt and name, the tools identify the agent."""
    path = write_tiny_script(folder / "labels.gguf", {"\n": CALL})
    with running(settings_of(path, data=tmp_path)) as server, client_of(server) as client:
        assert labels_after(server, client, TOOLS) == labels_after(server, client, TOOLS[::-1])


def labels_after(server: OpenAIServer, client: openai.OpenAI, tools: Any) -> str:
    from suffixsvc_openai.engine.engine import Engine

    seen: list[str] = []
    real = Engine._request

    def spy(self: Any, call: Any, job: Any) -> Any:
        seen.append(job.plan.caller.labels["agent"])
        return real(self, call, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_request", spy)
        client.chat.completions.create(model="labels", messages=ASK, tools=tools, temperature=0)
    [label] = seen
    assert label.startswith("agent-")
    return label
