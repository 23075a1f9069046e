"""The live page in a real browser: colours, numbers, keys, hostile text, and what it may request."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.types import DraftSource
from suffixsvc_openai.app.run import OpenAIServer
from support.chromium import CHROMIUM, Page, chromium_page
from support.openai_serving import access_to, client_of, cycle_text, running, settings_of, token_of
from support.tiny_gguf import chain_of, write_tiny_chain

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

#: markup, a character that reverses the text after it, and an escape
HOSTILE = "<img src=x>\u202e\x1b\n"
TOKENS = "[...document.querySelectorAll('#answers .t')]"


@pytest.fixture
def page() -> Iterator[Page]:
    with chromium_page() as page:
        yield page


def write(server: OpenAIServer, key: str = "unused", **fields: Any) -> None:
    fields = {"prompt": "ab", "max_tokens": 40, "temperature": 0, **fields}
    with client_of(server, key) as client:
        client.completions.create(model=server.service.model, **fields)


def check_own_requests(page: Page, *servers: OpenAIServer) -> None:
    own = tuple(f"http://{server.address}/" for server in servers)
    assert page.requests
    assert [url for url in page.requests if not url.startswith((*own, "data:"))] == []


def shares_of_pixels(page: Page, image: bytes, colours: list[str]) -> list[float]:
    """Shares of the pixels of a PNG that have these colours, as the browser that drew it reads them."""
    source = "data:image/png;base64," + base64.b64encode(image).decode()
    return page.evaluate(  # type: ignore[no-any-return]
        f"""(async () => {{
            const image = new Image(); image.src = {json.dumps(source)}; await image.decode();
            const canvas = document.createElement("canvas");
            canvas.width = image.width; canvas.height = image.height;
            const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
            const data = context.getImageData(0, 0, image.width, image.height).data;
            return {json.dumps(colours)}.map(colour => {{
                const [r, g, b] = colour.match(/\\d+/g).map(Number);
                let found = 0;
                for (let i = 0; i < data.length; i += 4)
                    found += data[i] === r && data[i + 1] === g && data[i + 2] === b;
                return found * 4 / data.length;
            }});
        }})()"""
    )


def test_tokens_have_the_colour_of_their_source_and_numbers_update(
    cycle: Path, page: Page, tmp_path: Path
) -> None:
    with running(settings_of(cycle)) as server:
        page.open(f"http://{server.address}/")
        page.wait("document.getElementById('state').textContent === 'live'")
        assert page.evaluate(f"{TOKENS}.length") == 0
        write(server)
        page.wait(f"{TOKENS}.length === 40")
        assert page.evaluate(f"{TOKENS}.map(each => each.textContent).join('')") == cycle_text("b", 40)
        sources = page.evaluate(f"{TOKENS}.map(each => Number(each.dataset.source))")
        assert DraftSource.NONE in sources
        assert len(set(sources)) > 1
        background = "getComputedStyle(each).backgroundColor"
        colours = dict(zip(sources, page.evaluate(f"{TOKENS}.map(each => {background})"), strict=True))
        legend = dict(
            page.evaluate(
                "[...document.querySelectorAll('#sources button')].map(button => { const each = "
                f"button.firstChild; return [Number(button.dataset.source), {background}]; }})"
            )
        )
        assert set(legend) == set(DraftSource) - {DraftSource.CORPUS}
        assert len(set(legend.values())) == len(legend)  # a colour of its own for each source
        assert {source: legend[source] for source in colours} == colours
        page.wait("document.getElementById('total').textContent === '1 answers'")
        write(server, prompt="cd")
        page.wait("document.getElementById('total').textContent === '2 answers'")
        page.wait("Number(document.getElementById('rate').textContent) > 0")
        assert "plain" in page.wait("document.getElementById('against').textContent")
        assert page.evaluate("document.querySelectorAll('#layers tr').length") > 0
        assert page.evaluate("document.querySelectorAll('#positions div').length") > 0
        page.wait("document.getElementById('stored').textContent.startsWith('default280')")  # outputs, tokens
        for dark in (False, True):
            page.resize(1280, 900, dark=dark)
            drafted = page.evaluate(f"[...new Set({TOKENS}.map(each => {background}))]")
            drafted = [colour for colour in drafted if not colour.startswith("rgba")]  # transparent
            assert drafted
            image = page.screenshot(tmp_path / f"live-{dark}.png")
            assert min(shares_of_pixels(page, image, drafted)) > 1e-4
        for width in (1280, 800, 360):
            page.resize(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.errors == []
        check_own_requests(page, server)


def test_hostile_text_is_text(tmp_path: Path, page: Page) -> None:
    model = write_tiny_chain(tmp_path / "hostile.gguf", chain_of(HOSTILE), context=1 << 13)
    labels = {"namespace": "a<b>", "agent": HOSTILE}
    with running(settings_of(model)) as server:
        page.open(f"http://{server.address}/")
        prompt = "<script>alert(1)</script>" + HOSTILE[:5]
        size = len(HOSTILE.encode())
        write(server, prompt=prompt, max_tokens=2 * size, extra_body={"suffixsvc": labels})
        page.wait("document.querySelector('#answers article header')?.textContent.includes('length limit')")
        text = page.evaluate("document.querySelector('#answers pre').textContent")
        shown = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
        assert text == prompt + shown[5:] + shown + shown[:5]
        header = page.evaluate("document.querySelector('#answers header').textContent")
        assert "a<b>" in header
        assert "<img src=x>\\u202e\\x1b" in header
        assert page.evaluate("document.querySelectorAll('#answers :is(script, img, b b, i)').length") == 0
        assert page.errors == []
        check_own_requests(page, server)
        # the policy holds, too: a script that got into the page would not run
        page.evaluate(
            "(() => { const each = document.createElement('script'); each.textContent = 'window.ran = 1';"
            " document.body.append(each); })()"
        )
        assert page.evaluate("window.ran") is None


def test_the_page_of_a_server_with_keys_asks_for_one(cycle: Path, tmp_path: Path, page: Page) -> None:
    alice, bob = token_of("alice"), token_of("bob")
    with running(settings_of(cycle, access=access_to(tmp_path, alice, bob))) as server:
        write(server, bob, prompt="hgfedcba")
        page.open(f"http://{server.address}/")
        page.wait("!document.getElementById('login').hidden")
        assert page.evaluate("document.getElementById('main').hidden") is True
        assert page.errors == []
        for key in (token_of("alice", 1), alice):
            assert page.evaluate("document.getElementById('key').type") == "password"
            page.evaluate(
                f"document.getElementById('key').value = '{key}';"
                "document.querySelector('#login button').click()"
            )
            if key != alice:
                page.wait("document.getElementById('note').textContent.includes('token')")
                assert page.evaluate("document.getElementById('main').hidden") is True
        page.wait("document.getElementById('state').textContent === 'live'")
        write(server, alice)
        page.wait(f"{TOKENS}.length === 40")
        assert "alice" in page.evaluate("document.getElementById('who').textContent")
        assert "hgfe" not in page.evaluate("document.body.textContent")
        # the numbers are those of all principals, and not for this one
        hidden = "[...document.querySelectorAll('[data-all]')].map(each => each.offsetParent === null)"
        assert page.evaluate(hidden) == [True, True, True]
        assert not any("sfx_" in url for url in [*page.requests, page.evaluate("location.href")])
        assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        check_own_requests(page, server)


def test_the_page_returns_with_the_server(cycle: Path, page: Page) -> None:
    settings = settings_of(cycle)
    with running(settings) as first:
        write(first)
        page.open(f"http://{first.address}/")
        page.wait(f"{TOKENS}.length === 40")
        port = int(first.address.rpartition(":")[2])
    page.wait("document.getElementById('state').textContent.startsWith('disconnected')")
    with running(replace(settings, port=port)) as second:
        page.wait("document.getElementById('state').textContent === 'live'")
        page.wait(f"{TOKENS}.length === 0")
        write(second, max_tokens=7)
        page.wait(f"{TOKENS}.length === 7")
