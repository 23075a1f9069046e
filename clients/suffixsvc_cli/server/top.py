"""``suffixsvc top``: a live view of a running service in the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from rich.console import Console

    from suffixsvc_cli.server.top_report import Reading
    from suffixsvc_client import SuffixClient

#: keys that end the view
_QUIT: Final = b"qQ\x03\x04"


def top(
    server: Annotated[str, typer.Option(help="Address of a running service: unix:PATH or HOST:PORT.")],
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two readings; rates are of this time.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show two readings' rates once, then end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a running service: sessions, rates, namespaces, followers, background tasks and the store.

    q or Ctrl-C ends it. --once --json prints one JSON object.

        suffixsvc top --server unix:./suffixsvc.sock
    """
    from rich.console import Console

    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_cli.server.top_report import read
    from suffixsvc_client import SuffixClient

    if as_json and not once:
        raise InvalidConfigError("--json must be given with --once", remedy="Repeat --once --json.")
    console = Console()
    if not once and not console.is_terminal:
        raise InvalidConfigError(
            "standard output must be a terminal", got="another file", remedy="Use --once, or --once --json."
        )
    with contextlib.suppress(KeyboardInterrupt), SuffixClient(server) as client:
        first = read(client)
        if once:
            time.sleep(interval)
            _show_once(console, server, read(client), first, as_json=as_json)
        else:
            _watch(console, server, client, first, interval)


def _show_once(console: Console, server: str, now: Reading, before: Reading, *, as_json: bool) -> None:
    from suffixsvc_cli.server.top_report import report_of
    from suffixsvc_cli.server.top_view import view

    report = report_of(now, before)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        console.print(view(report, server, console.width, sys.maxsize))


def _watch(console: Console, server: str, client: SuffixClient, first: Reading, interval: float) -> None:
    """Show readings until a key or Ctrl-C ends it. A service that does not answer is asked again."""
    from rich.live import Live

    from suffixsvc.errors import SuffixError
    from suffixsvc_cli.server.top_report import read, report_of
    from suffixsvc_cli.server.top_view import view

    now, before, problem = first, None, ""
    with _keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            report = report_of(now, before)
            live.update(view(report, server, console.width, console.height, problem), refresh=True)
            if wait(interval):
                return
            try:
                now, before, problem = read(client), now, ""
            except SuffixError as error:
                problem = error.message


class _Keys:
    """Waits for keys of the terminal; where standard input is no terminal, for the time only."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, seconds: float) -> bool:
        """Wait; whether a key that ends the view was pressed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._descriptor is None:
                time.sleep(left)
                return False
            ready, _, _ = select.select([self._descriptor], [], [], left)
            if not ready:
                return False
            pressed = os.read(self._descriptor, 1024)
            if not pressed:  # the terminal is gone
                return True
            if any(key in _QUIT for key in pressed):
                return True
        return False


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Read single keys, without showing them, in the block."""
    import termios
    import tty

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, AttributeError, termios.error):
        yield _Keys(None)
        return
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
