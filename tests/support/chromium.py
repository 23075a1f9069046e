"""Debian's Chromium without a window, driven over a pipe (Chrome DevTools Protocol), for tests of pages."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.serving import PATIENCE_S

#: None where it is not installed
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


class Page:
    """A tab.

    Attributes:
        errors: messages of the console that are errors or warnings, exceptions, and blocked resources.
        requests: URL of every request, in order.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest = read, write, b""
        self._count = 0
        self._session: str | None = None
        self._answers: dict[int, dict[str, Any]] = {}
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        end = time.monotonic() + PATIENCE_S
        while self._count not in self._answers:
            self._receive(end)
        answer = self._answers.pop(self._count)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, end: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
        assert ready, "Chromium does not answer"
        data = os.read(self._read, 1 << 20)
        assert data, "Chromium has ended"
        *whole, self._rest = (self._rest + data).split(b"\0")
        for each in whole:
            self._take(json.loads(each))

    def _take(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case None:
                self._answers[message["id"]] = message
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                self.errors.append(f"exception: {params['exceptionDetails']}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"log: {params['entry']['text']} {params['entry'].get('url')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        """Go to a page."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, good: Callable[[Any], bool] = bool) -> Any:
        """Wait until an expression has a value that is true, or ``good``; return it."""
        end = time.monotonic() + PATIENCE_S
        while not good(value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression} is {value!r}; {self.errors}"
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Change the window's size and its preferred colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> bytes:
        """Write the visible part as PNG, and return it."""
        data = base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data


@contextlib.contextmanager
def chromium_page(*options: str) -> Iterator[Page]:
    """A browser with one empty tab; it ends with the block."""
    assert CHROMIUM is not None
    more = [*options, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # root cannot use the sandbox
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        # the pipes are descriptors 3 and 4 of the browser
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]
        shell = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
        process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *_OPTIONS, *more, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        try:
            for fd in (*ends, to_browser[0], from_browser[1]):
                os.close(fd)
            page = Page(from_browser[0], to_browser[1])
            page.resize(1280, 900)
            yield page
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            os.close(to_browser[1])
            os.close(from_browser[0])
