"""Hostile chat templates end with a typed error, in bounded time and memory."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from suffixsvc.errors import InvalidInputError, LimitExceededError, ModelError
from suffixsvc_openai.prompts.chat_template import ChatTemplate
from suffixsvc_openai.prompts.template_process import TemplateLimits
from support.serving import PATIENCE_S, eventually

LIMITS = TemplateLimits(cpu_seconds=0.25, memory_bytes=1 << 29, max_characters=1 << 20)
USER = [{"role": "user", "content": "x"}]
#: longer than what a pipe holds
LONG = [{"role": "user", "content": "x" * (1 << 20)}]
# not in the conversation that finds out what a template takes
WHEN = "{% if messages[0].content == 'x' %}"


@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        # loops, which exceptions could interrupt
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "CPU time"),
        ("{% macro m(x) %}{{ m(x) if x }}{% endmacro %}{{ m(1) }}", "RecursionError"),
        # C code, which they could not
        ("{{ messages[0].content.replace('x', '9') ~ ((10 - messages | length) ** (10 ** 9)) }}", "CPU time"),
        ("{{ 'a' * messages | length * 10 ** 10 }}", "512 MiB"),
        ("{{ '%999999999999d' % messages | length }}", "512 MiB|OverflowError|ValueError"),
        ("{{ messages[0].content.ljust(10 ** 12) }}", "512 MiB"),
        (
            "{% set n = namespace(s='x') %}{% for i in range(50) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            "MiB|CPU",
        ),
        ("{{ range(10 ** 12) | list }}", "OverflowError"),
        ("{% for i in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxx{% endfor %}", "1048576 characters"),
        # the sandbox
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.getpid() }}", "SecurityError|Undefined"),
        ("{% include '/etc/passwd' %}", "TypeError|TemplateNotFound"),
    ],
)
def test_a_bomb_is_an_error_and_the_next_prompt_is_rendered(bomb: str, reason: str) -> None:
    with ChatTemplate(WHEN + bomb + "{% else %}fine{% endif %}", limits=LIMITS) as template:
        with pytest.raises((LimitExceededError, InvalidInputError), match=reason):
            template.render(USER)
        assert template.render([{"role": "user", "content": "y"}]) == "fine"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{% if", InvalidInputError),
        ("{{ " + "(" * 9000, InvalidInputError),
        ("{{ 7 ** (10 ** 9) }}", LimitExceededError),  # computed by the compiler
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            LimitExceededError,
        ),
    ],
)
def test_a_template_that_always_fails_is_an_error_of_the_constructor(
    text: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ChatTemplate(text, limits=LIMITS)


def test_a_process_that_was_killed_while_it_waited_is_started_again() -> None:
    with ChatTemplate("{{ messages[0].content }}") as template:
        process = template._process._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert template.render(USER) == "x"


def stop(template: ChatTemplate) -> int:
    """Stop the process of a template; return its id."""
    process = template._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process.pid


@pytest.fixture
def nothing_hangs() -> Iterator[None]:
    """Ends this test process if it waits for a stopped one."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.usefixtures("nothing_hangs")
@pytest.mark.parametrize("messages", [USER, LONG])
def test_a_process_that_is_stopped_is_replaced(messages: list[dict[str, str]]) -> None:
    """Its timer of CPU time does not run: chats waited for it, and the requests after them."""
    with ChatTemplate("{{ messages[0].content }}", limits=replace(LIMITS, wall_seconds=3600)) as template:
        pid, rendering = stop(template), template._process
        patient, rendering._limits = rendering._limits, replace(LIMITS, wall_seconds=0.5)
        with pytest.raises(LimitExceededError, match=r"must be rendered in 0.5 s"):
            template.render(messages)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        rendering._limits = patient  # starting a process takes longer
        assert template.render(USER) == "x"


@pytest.mark.usefixtures("nothing_hangs")
def test_close_does_not_wait_for_a_process_that_is_stopped() -> None:
    """The thread that waited held the lock that close took: a server could not stop."""
    found: list[str] = []
    waiting = threading.Event()

    def render() -> None:
        waiting.set()
        try:
            template.render(LONG)
        except ModelError as error:
            found.append(error.message)

    with ChatTemplate("{{ messages[0].content }}", limits=replace(LIMITS, wall_seconds=3600)) as template:
        stop(template)
        thread = threading.Thread(target=render)
        thread.start()
        assert waiting.wait(PATIENCE_S)
        eventually(template._process._lock.locked, "a prompt is being rendered")
    thread.join()
    assert found == ["the chat template was closed"]


def test_threads_share_one_template() -> None:
    results: dict[int, set[str]] = {}
    with ChatTemplate("{{ messages[0].content }}") as template:

        def render(number: int) -> None:
            message = [{"role": "user", "content": str(number) * 1000}]
            results[number] = {template.render(message) for _ in range(50)}

        threads = [threading.Thread(target=render, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {i: {str(i) * 1000} for i in range(8)}


def test_the_process_ends_with_its_parent_even_without_close() -> None:
    program = (
        "from suffixsvc_openai.prompts.chat_template import ChatTemplate\n"
        "t = ChatTemplate('x'); print(t._process._process.pid, flush=True)\n"
        "import os, sys; os._exit(0) if sys.argv[1] == 'crash' else None"
    )
    for how in ("crash", "return"):
        done = subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        pid = int(done.stdout)
        for _ in range(1000):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                break
            threading.Event().wait(0.02)
        else:
            pytest.fail(f"the process lives after its parent's {how}")
