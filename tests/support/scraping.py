"""Scrapes of a service's metrics."""

from __future__ import annotations

import http.client
import re

from prometheus_client.parser import text_string_to_metric_families

from support.serving import PATIENCE_S, ServeProcess


def request(address: str, method: str = "GET", path: str = "/metrics") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), dict(reply.getheaders())
    finally:
        connection.close()


class Scrape:
    """The samples of a scrape."""

    def __init__(self, address: str) -> None:
        status, text, headers = request(address)
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain")
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        found = [
            each.value
            for each in self.samples
            if each.name == f"suffixsvc_{name}" and labels.items() <= each.labels.items()
        ]
        assert found, (name, labels)
        return sum(found)

    def values(self, label: str) -> set[str]:
        return {each.labels[label] for each in self.samples if label in each.labels}


def address_of(serve: ServeProcess) -> str:
    found = re.fullmatch(r"http://(.+)/metrics", serve.ready["metrics"])
    assert found
    return found[1]
