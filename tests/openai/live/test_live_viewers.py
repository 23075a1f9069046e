"""Viewers of the live page: who may be one, how many, slow ones, and the end of the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.live.feed import KEPT_ANSWERS
from suffixsvc_openai.live.viewer import MAX_VIEWERS, MAX_VIEWERS_OF_ONE, Viewer
from support.live_events import LiveReader, watching
from support.openai_serving import access_to, client_of, running, settings_of, token_of
from support.serving import PATIENCE_S, eventually

USERS = [token_of(f"user{i}") for i in range(3)]


@pytest.fixture
def keyed(cycle: Path, tmp_path: Path) -> Iterator[OpenAIServer]:
    with running(settings_of(cycle, access=access_to(tmp_path, *USERS))) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: OpenAIServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http:
        yield http


@pytest.mark.parametrize("path", ["/", "/live"])
@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_without_keys_pages_of_other_hosts_are_refused(
    http: httpx.Client, path: str, header: dict[str, str]
) -> None:
    answer = http.get(path, headers=header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_events_for_another_page_are_refused(http: httpx.Client, site: str) -> None:
    answer = http.get("/live", headers={"Sec-Fetch-Site": site})  # as for <img src>, which has no Origin
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_events_need_a_key_in_a_header(keyed: OpenAIServer) -> None:
    with httpx.Client(base_url=f"http://{keyed.address}", timeout=PATIENCE_S) as http:
        for path, headers in (
            ("/live", {}),
            (f"/live?key={USERS[0]}&api_key={USERS[0]}", {}),
            ("/live", {"Authorization": f"Bearer {token_of('user9')}"}),
        ):
            answer = http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        page = http.get("/", headers={"Host": "models.example"})
    assert page.status_code == 200
    assert 'data-key="true"' in page.text
    assert "user0" not in page.text
    assert "cycle" not in page.text
    with watching(keyed, USERS[0]) as viewer:
        assert viewer.messages[0]["server"]["principal"] == "user0"


def test_the_page_is_bound_to_its_own_script_and_host(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script-src", "style-src"):
        assert policy[kind].startswith("'sha256-")
        assert " " not in policy[kind]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert 'data-key="false"' in page.text
    assert "http:" not in page.text
    assert "https:" not in page.text
    assert "innerHTML" not in page.text


def test_the_number_of_viewers_is_bounded(keyed: OpenAIServer) -> None:
    def refused(user: int) -> bool:
        headers = {"Authorization": f"Bearer {USERS[user]}"}
        with httpx.stream(
            "GET", f"http://{keyed.address}/live", headers=headers, timeout=PATIENCE_S
        ) as answer:
            if answer.status_code == 200:
                return False
            answer.read()
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_viewers")
            return True

    with contextlib.ExitStack() as open_pages:
        for _ in range(MAX_VIEWERS_OF_ONE):
            open_pages.enter_context(watching(keyed, USERS[0]))
        assert refused(0)
        for _ in range(MAX_VIEWERS - MAX_VIEWERS_OF_ONE):
            open_pages.enter_context(watching(keyed, USERS[1]))
        assert refused(2)
    for user in range(3):  # places of viewers that have gone are free
        eventually(lambda user=user: not refused(user), "a place is free")


def write_many(server: OpenAIServer, count: int, tokens: int, **fields: Any) -> None:
    """Generate so many answers; return when all have ended."""
    before = server.service.feed.numbers()[1]
    fields = {"model": "cycle", "prompt": "ab", "temperature": 0, **fields}
    with client_of(server) as client:
        answer = client.completions.create(**fields, n=count, max_tokens=tokens)
    assert len(answer.choices) == count
    eventually(lambda: server.service.feed.numbers()[1] >= before + count, "all have ended")


def test_a_viewer_that_reads_nothing_delays_no_lane_and_is_told_what_it_lost(cycle: Path) -> None:
    count = 64
    # whose description is long
    fields = {"prompt": "\x01" * 99 + "ab", "extra_body": {"suffixsvc": {"agent": "\U0001f600" * 80}}}
    with running(settings_of(cycle, queue_size=2 * count)) as server:
        # a connection that holds little: the buffers of an accepted socket are those of the listening one
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as viewer:
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            viewer.settimeout(PATIENCE_S)
            host, _, port = server.address.rpartition(":")
            viewer.connect((host, int(port)))
            viewer.sendall(f"GET /live HTTP/1.0\r\nHost: {server.address}\r\n\r\n".encode())
            assert viewer.recv(12) == b"HTTP/1.1 200"
            for _ in range(2):  # they return: nothing waits for the viewer
                write_many(server, count, 50, **fields)
            lines = iter(viewer.makefile("r", encoding="utf-8"))
            while next(lines) != "\n":  # headers
                pass
            reader = LiveReader(line.removesuffix("\n") for line in lines)
            reader.until(lambda reader: reader.ends() + reader.lost() == 2 * count)
    assert reader.lost() > 0
    gone = {number for message in reader.messages for number in message.get("gone", ())}
    assert {number for number, answer in reader.answers.items() if "end" not in answer} == gone


async def test_what_a_late_viewer_missed_is_counted(cycle: Path) -> None:
    with running(settings_of(cycle, queue_size=64)) as server:
        viewer = Viewer(server.service.feed, server.service.engine, "local", "cycle")

        def news() -> LiveReader:
            reader = LiveReader(iter(()))
            reader.messages = list(viewer.news())
            return reader

        await asyncio.to_thread(write_many, server, 3, 5)
        first = news()
        await asyncio.to_thread(write_many, server, KEPT_ANSWERS + 5, 5)
        await asyncio.sleep(0.1)  # longer than a refresh
        second = news()
        viewer.close()
    assert first.lost() == 0
    assert second.lost() == 5  # those beyond the kept ones
    [answers] = [message["answers"] for message in second.messages if "answers" in message]
    assert len(answers) == KEPT_ANSWERS


def test_viewers_end_with_the_server(cycle: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(settings_of(cycle)))
        viewer = stack.enter_context(watching(server))
        server.close()
        viewer.rest()  # the response is complete


def test_the_events_go_on_while_the_server_drains(cycle: Path) -> None:
    with running(settings_of(cycle)) as server:
        server.service.draining = True
        with watching(server) as viewer:
            viewer.until(lambda reader: reader.numbers)


def test_without_viewers_nothing_but_the_kept_answers_is_held(cycle: Path) -> None:
    with running(settings_of(cycle, queue_size=64)) as server:
        write_many(server, 30, 5)
        feed: Any = server.service.feed
        assert not feed._open
        running_now, ended, count = feed.of("local")
    assert (running_now, len(ended), count) == ([], KEPT_ANSWERS, 30)
    assert all(not shown.progress.steps and shown.progress.ticket is None for shown in ended)
