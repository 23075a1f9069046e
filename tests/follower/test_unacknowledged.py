"""How much of what a follower's sessions wrote its service has not acknowledged: for operators."""

from __future__ import annotations

import signal

from suffixsvc_client import ClientConfig
from suffixsvc_follower import Follower, FollowerConfig, connect
from support.serving import ServeProcess, eventually, socket_dir

CONFIG = FollowerConfig(client=ClientConfig(step_timeout_s=300, open_timeout_s=300))


def test_tokens_that_a_stopped_service_does_not_acknowledge() -> None:
    with (
        socket_dir() as folder,
        ServeProcess(folder).start() as serve,
        connect(serve.address, mode="follow", config=CONFIG) as backend,
    ):
        assert isinstance(backend, Follower)
        uplink = backend._parts.uplink
        session = backend.namespace("a").open_session([1, 2, 3])
        session.step([4, 5])
        eventually(lambda: uplink.unacknowledged_tokens == 0, "the service has everything")
        serve.send(signal.SIGSTOP)
        session.step(list(range(10, 50)))
        assert uplink.unacknowledged_tokens == 40
        serve.send(signal.SIGCONT)
        eventually(lambda: uplink.unacknowledged_tokens == 0, "the service has everything again")
        eventually(lambda: backend.stats().followers[0].unacknowledged_tokens == 0, "it is reported")
