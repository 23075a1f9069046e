"""The examples of the client, as processes."""

from __future__ import annotations

import re
import subprocess
import sys

from suffixsvc_client import SuffixClient
from suffixsvc_client.examples.two_processes import ANSWERS, NAMESPACE
from support.serving import ServeProcess, socket_dir


def test_two_processes_share_what_they_wrote() -> None:
    with socket_dir() as folder, ServeProcess(folder) as service:
        service.start()
        command = [sys.executable, "-m", "suffixsvc_client.examples.two_processes", service.address]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        counts = [tuple(map(int, re.findall(r"\d+", line))) for line in ran.stdout.splitlines()]
        [(first_tokens, first_steps), (tokens, steps)] = counts
        assert first_steps == first_tokens == 80  # nothing of it was written before
        assert tokens == sum(map(len, ANSWERS["second"]))
        assert steps <= tokens // 3
        with SuffixClient(service.address) as client:
            assert client.namespace(NAMESPACE).stats().outputs == 4


def test_a_missing_address_is_told() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "suffixsvc_client.examples.two_processes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr == "usage: python -m suffixsvc_client.examples.two_processes ADDRESS\n"
