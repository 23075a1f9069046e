"""Sealed segments in the service: used for drafts, and part of the statistics."""

from __future__ import annotations

from suffixsvc import SuffixCache
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import ServeProcess, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)


def test_a_service_drafts_from_segments_and_reports_them() -> None:
    text = list(range(100, 160))
    with socket_dir() as folder, ServeProcess(folder) as serve:
        with SuffixCache(folder / "data") as cache:
            cache.namespace("a").add_output(text)
            cache.compact()
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            space = client.namespace("a")
            stats = space.stats()
            assert (stats.outputs, stats.segments, stats.hot_tokens) == (1, 1, 0)
            files = list((folder / "data").rglob("*.seg"))
            assert stats.segment_bytes == sum(file.stat().st_size for file in files) > 0
            space.add_output([1, 2, 3])
            assert space.stats().hot_tokens == 3
            assert client.stats().segments == 1
            session = space.open_session(text[:30])
            draft = session.step([text[30]])
            session.close(commit=False)
            assert draft.token_ids[:4].tolist() == text[31:35]
        assert serve.terminate() == 0
