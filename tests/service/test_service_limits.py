"""Limits of the service: options, the policy file, errors and timers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import Policies, Policy, SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc.service import server as server_module
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import PATIENCE_S, ServeProcess, eventually, serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def test_policies_of_a_file_apply_in_the_service(folder: Path) -> None:
    file = folder / "policies.toml"
    file.write_text(
        '[namespaces."small"]\nmax_bytes = "20 KiB"\n[namespaces.docs]\npinned = true\nmax_bytes = 2400\n'
    )
    with ServeProcess(folder, "--policies", str(file), "--max-cache-gib", "1") as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            small = client.namespace("small/ns")
            written = [small.add_output(list(range(n * 100, n * 100 + 60))) for n in range(30)]
            stats = small.stats()
            assert stats.held_bytes <= stats.limit_bytes == 20 << 10
            assert stats.outputs + stats.evicted_outputs == len(written)
            assert stats.evicted_outputs > 0
            assert client.stats().limit_bytes == 1 << 30
            assert client.stats().held_bytes == stats.held_bytes

            docs = client.namespace("docs")
            docs.add_output([1, 2, 3])
            with pytest.raises(LimitExceededError, match="pinned") as caught:
                docs.add_output(list(range(15)))
            assert caught.value.expected
            assert caught.value.got
            assert caught.value.remedy
            session = docs.open_session([1])
            for token in range(100):
                session.step([token])
            assert session.close() is None, "the generation is not affected"
            assert docs.stats().refused_outputs == 1
            assert docs.stats().outputs == 1
        assert serve.terminate() == 0
        lines = [json.loads(line) for line in serve.output().splitlines()]
        [line] = [line for line in lines if line["event"] == "outputs are not stored"]
        assert line["namespace"] == "docs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("[default\n", "line 1"),
        ('[default]\nmax_bytes = "much"\n', "default.max_bytes"),
        ("[defaults]\n", "defaults"),
    ],
)
def test_a_bad_file_is_one_line_and_nothing_starts(folder: Path, text: str | None, said: str) -> None:
    file = folder / "policies.toml"
    if text is not None:
        file.write_text(text)
    process = ServeProcess(folder, "--policies", str(file)).launch()
    _, output = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "Traceback" not in output
    assert said in output
    assert str(file) in output
    assert not (folder / "data").exists()


def test_the_service_evicts_and_expires_on_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST_EXPIRY_PERIOD_SECONDS", 0.05)
    policies = Policies({"small": Policy(max_bytes=20 << 10), "old": Policy(ttl_seconds=1)})
    with SuffixCache(policies=policies) as cache:
        with serving(cache, f"unix:{folder}/s.sock") as (_, address), SuffixClient(address) as client:
            for n in range(30):
                session = cache.namespace("small").open_session([1])
                session.step(list(range(n * 100, n * 100 + 60)), 0)
                session.close(wait=False)  # a close that does not wait does not evict, either
            assert client.namespace("old").add_output([1, 2, 3])
            eventually(lambda: client.namespace("old").stats().outputs == 0, "the policy's time has passed")
            small = client.namespace("small")
            eventually(lambda: small.stats().held_bytes <= 20 << 10, "the namespace is within its limit")
            assert small.stats().evicted_outputs > 0
        cache.check()
