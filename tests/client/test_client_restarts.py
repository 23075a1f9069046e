"""A client uses a restarted service soon, however long the service was away."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixsvc_client import ClientConfig, EmptyReason, SuffixClient
from suffixsvc_client.protocol import breaker
from support.serving import ServeProcess, eventually, socket_dir

TEXT = list(range(100, 140))
#: without the bound no pause would end within a test
CONFIG = ClientConfig(
    step_timeout_s=60.0,
    open_timeout_s=60.0,
    breaker_failures=1,
    breaker_pause_s=0.001,
    breaker_max_pause_s=3600.0,
)


@pytest.mark.parametrize("network", ["unix", "tcp"])
def test_pauses_do_not_grow_while_the_service_cannot_be_reached(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its absence costs a step no time, so that the next attempt need not wait: the pause would have grown to
    months by then."""
    monkeypatch.setattr(breaker, "RESTART_PAUSE_S", 0.01)
    with socket_dir() as folder:
        listen = None if network == "unix" else ("127.0.0.1:0",)
        with ServeProcess(folder, listen=listen).start() as serve:
            address = serve.ready["addresses"][0] if network == "tcp" else serve.address
            with SuffixClient(address, CONFIG) as client:
                client.namespace("a").add_output(TEXT)
                session = client.namespace("a").open_session([1])
                assert len(session.step(TEXT[:3]))
                assert serve.terminate() == 0

                def many_attempts() -> bool:
                    session.step([])
                    return client.counts.empty.get(EmptyReason.UNAVAILABLE, 0) >= 40

                eventually(many_attempts, "attempts while it is away")
                assert client.verbs.procedures.breaker.open
                restart(serve, folder, address)
                drafts = client.counts.drafts

                def drafted() -> bool:
                    session.step([])
                    return client.counts.drafts > drafts

                eventually(drafted, "it drafts again")
                assert session.close() is not None


def restart(serve: ServeProcess, folder: Path, address: str) -> None:
    """Start the service again on its folder and address."""
    serve._listen = (address,)
    serve.start()
