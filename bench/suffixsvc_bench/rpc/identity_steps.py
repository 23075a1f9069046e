"""Steps over TLS with a token beside steps without; a second service and bare echos are the controls."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trustme

from suffixsvc.access.tokens import TokenFile
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.transport.tls import ClientTls
from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.processes import echo_process, tcp_service_process
from suffixsvc_bench.rpc.subjects import NAMESPACE, EchoCalls, StreamSteps, Subject
from suffixsvc_bench.rpc.timing import alternating
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import ClientConfig, SuffixClient

#: owner of the namespace of all sessions
_PRINCIPAL: Final = NAMESPACE.partition("/")[0]
_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_OUTPUT_TOKENS: Final = 500
_OUTPUTS: Final = 200
_WARM_CALLS: Final = 50
#: calls whose message sizes the echos repeat
_SIZED: Final = 64
#: calls of a subject in a round; short rounds, because the speed of a shared machine drifts
_CALLS_PER_ROUND: Final = 25
_MAX_DRAFT_TOKENS: Final = 16
_SUBJECTS: Final = ("tls", "plain", "control", "echo_tls", "echo")


def identity_steps(
    notify: Callable[[str], None], *, calls: int, pause_ms: float, seed: int
) -> list[dict[str, Any]]:
    """Time steps of one session on a stream over TCP at three services of the same contents.

    Args:
        notify: called with a description before each configuration.
        calls: timed calls of each subject.
        pause_ms: CPU-bound pause before a cold call, milliseconds.
        seed: of the texts.

    Returns:
        A record for "hot" (back-to-back) and "cold" calls: "mode", "calls"; "tls", "plain", "control",
        "echo_tls", "echo": microseconds. Ratios of medians: "ratio": tls / plain; "control_ratio":
        control / plain, what it is for equal subjects; "echo_ratio": the same bytes to an echo over TLS / to
        one without, what gRPC's TLS takes by itself.
    """
    found = []
    for mode, pause_s in (("hot", 0.0), ("cold", pause_ms / 1e3)):
        notify(f"TLS and token, {mode}")
        us = _timed(calls, pause_s, Workload(seed))
        medians = {subject: us[subject]["p50"] for subject in _SUBJECTS}
        ratios = {
            "ratio": medians["tls"] / medians["plain"],
            "control_ratio": medians["control"] / medians["plain"],
            "echo_ratio": medians["echo_tls"] / medians["echo"],
        }
        found.append({"mode": mode, "calls": calls, **us, **ratios})
    return found


def _timed(calls: int, pause_s: float, workload: Workload) -> dict[str, dict[str, float]]:
    known = workload.outputs(NAMESPACE, _OUTPUTS, _OUTPUT_TOKENS)
    prompts, texts = [workload.text(_PROMPT_TOKENS)], [workload.text(_TEXT_TOKENS)]
    subjects: list[Subject] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfx-")))
        credentials, nothing = _Credentials.made(folder), ClientIdentity()
        for name, identity, options in (
            ("tls", credentials.client, credentials.options()),
            ("plain", nothing, []),
            ("control", nothing, []),
        ):
            target = stack.enter_context(tcp_service_process(folder / name, options))
            with SuffixClient(target, ClientConfig(identity=identity)) as client:
                client.namespace(NAMESPACE).add_outputs(known)
            steps = StreamSteps(target, prompts, texts, _MAX_DRAFT_TOKENS, identity)
            subjects.append(stack.enter_context(closing(steps)))
        sizes = steps.sizes(_SIZED)
        for name, identity, certificate in (
            ("echo_tls", credentials.client, (credentials.certificate, credentials.key)),
            ("echo", nothing, ()),
        ):
            place = folder / name
            place.mkdir()
            target = stack.enter_context(echo_process(place, certificate))["tcp"]
            echo = EchoCalls(target, sizes, 0.0, stream=True, identity=identity)
            subjects.append(stack.enter_context(closing(echo)))
        rounds = max(1, calls // _CALLS_PER_ROUND)
        taken = alternating(subjects, calls, rounds, pause_s, _WARM_CALLS)
    return {name: percentiles(each) for name, each in zip(_SUBJECTS, taken, strict=True)}


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Of a server with TLS and tokens, and of its client."""

    certificate: Path
    key: Path
    tokens: Path
    client: ClientIdentity

    @staticmethod
    def made(folder: Path) -> _Credentials:
        """New ones, in files of a folder."""
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        ca, certificate, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        authority.cert_pem.write_to_path(ca)
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        tokens = folder / "tokens.toml"
        token = TokenFile(tokens).create(_PRINCIPAL)
        return _Credentials(certificate, key, tokens, ClientIdentity(token=token, tls=ClientTls(ca)))

    def options(self) -> list[str]:
        """Of ``suffixsvc serve``."""
        files = {"--tls-cert": self.certificate, "--tls-key": self.key, "--tokens": self.tokens}
        return [part for option, file in files.items() for part in (option, str(file))]
