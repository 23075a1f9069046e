"""Drafting that the policies file of a service turns off: for every kind of step, followers, figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2
from suffixsvc_client import ClientSession
from suffixsvc_follower import Follower, FollowerConfig, connect
from suffixsvc_follower.session import FollowerSession
from support.access import ControlledService
from support.command_line import run_verb
from support.serving import eventually
from support.stored import stored_outputs
from support.watching import WatchCall, hello

SECRET = list(range(100, 160))
PATH = "acme/sql"
OTHER = "acme/other"
GRANTS = '[principals."alice"]\nfollow = ["acme"]\nwrite = ["acme"]\n'
READS = '[principals."alice"]\nread = ["acme"]\nwrite = ["acme"]\n'
OFF = '[namespaces."acme/sql"]\ndrafting = false\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(PATH).add_output(SECRET, [1, 2, 3])
        cache.namespace(OTHER).add_output([7, 8, 9])
        with ControlledService(tmp_path, ("alice",), GRANTS).run(cache) as service:
            yield service
        cache.check()


def follower_of(service: ControlledService, folder: Path) -> Follower:
    config = FollowerConfig(client=service.config("alice"), segment_cache=folder, connect_seconds=60.0)
    found = connect(service.address, config=config)
    assert isinstance(found, Follower)
    return found


def drafts(session: FollowerSession | ClientSession) -> list[int]:
    return session.step([], 8, 0.001).token_ids.tolist()


def test_steps_of_streams_and_unary_calls_draft_nothing_at_once(service: ControlledService) -> None:
    with service.client("alice") as client:
        session = client.namespace(PATH).open_session([1, 2, 3])
        reader = client.namespace(OTHER).open_session([1, 2, 3, *SECRET[:4]], reads=[PATH])
        assert session.step(SECRET[:4], 8, 0.001).token_ids.tolist() == SECRET[4:12]
        assert drafts(reader) == SECRET[4:12]

        service.set_policy(GRANTS + OFF)
        assert drafts(reader) == []
        at = 4
        for token in SECRET[4:10]:  # plain steps, which never become protobuf objects
            assert not len(session.step([token], 8))
            at += 1
        assert not len(session.step(SECRET[10:12], 8, 0.05))  # another cost: parsed with protobuf
        opened = service.server.handlers.open_session(
            pb.OpenSessionRequest(namespace=PATH, prompt_token_ids=b""), _operator()
        )
        request = pb.StepRequest(
            session_id=opened.session_id,
            new_token_ids=b"".join(t.to_bytes(4, "little") for t in SECRET[:4]),
            max_draft_tokens=8,
        )
        answer = service.server.handlers.step(request, _operator())  # the unary call
        assert answer.length == 4
        assert not answer.draft.token_ids

        stats = client.namespace(PATH).stats()
        assert (stats.drafting_off, stats.num_off) == (1, 8)

        service.set_policy(GRANTS)
        assert session.step([SECRET[12]], 8, 0.001).token_ids.tolist() == SECRET[13:21]
        assert drafts(reader) == SECRET[4:12]
        output_id = session.close()
        reader.close(commit=False)
    found = {each.output_id: each.output.token_ids.tolist() for each in stored_outputs(service.cache, PATH)}
    assert found[output_id] == SECRET[:13]


def _operator() -> object:
    from suffixsvc.access.caller import OPERATOR_CALLER

    return OPERATOR_CALLER


def test_followers_are_told_and_draft_nothing(service: ControlledService, tmp_path: Path) -> None:
    with follower_of(service, tmp_path / "cache") as follower:
        assert follower.namespace(PATH).wait(60)
        session = follower.namespace(PATH).open_session([1, 2, 3, *SECRET[:4]])
        reader = follower.namespace(OTHER).open_session([1, 2, 3, *SECRET[:4]], reads=[PATH])
        assert isinstance(session, FollowerSession)
        assert drafts(session) == drafts(reader) == SECRET[4:12]

        service.set_policy(GRANTS + OFF)
        eventually(lambda: not follower.followed(PATH).copy.drafting, "the follower is told")
        assert drafts(session) == drafts(reader) == []
        assert not len(session.step(SECRET[4:8], 8))
        assert not len(session.draft_after(SECRET[:4]))
        late = follower.namespace(PATH).open_session([1, 2, 3, *SECRET[:4]])
        assert drafts(late) == []
        # what others write meanwhile is followed
        more = service.cache.namespace(PATH).add_output([*SECRET[:4], 77, 78])
        eventually(lambda: more in follower.followed(PATH).copy.outputs(), "the log is followed")
        eventually(lambda: service.cache.namespace(PATH).stats().num_off >= 3, "it is reported")

        service.set_policy(GRANTS)
        eventually(lambda: follower.followed(PATH).copy.drafting, "the follower is told")
        assert session.step([SECRET[8]], 8, 0.001).token_ids.tolist() == SECRET[9:17]
        assert len(drafts(late))
        output_id = session.close()
        reader.close(commit=False)
        late.close(commit=False)
    found = {each.output_id: each.output.token_ids.tolist() for each in stored_outputs(service.cache, PATH)}
    assert found[output_id] == SECRET[4:9]


def test_a_process_that_may_not_follow_drafts_nothing(service: ControlledService, tmp_path: Path) -> None:
    service.set_policy(READS + OFF)
    with follower_of(service, tmp_path / "cache") as follower:
        session = follower.namespace(PATH).open_session([1, 2, 3, *SECRET[:4]])
        assert isinstance(session, ClientSession)
        assert drafts(session) == []
        service.set_policy(READS)
        assert drafts(session) == SECRET[4:12]
        session.close(commit=False)


def test_a_follower_is_told_before_it_gets_the_contents_and_after_it_connects_again() -> None:
    from suffixsvc import Policies, Policy
    from support.serving import serving, socket_dir

    off = Policies({PATH: Policy(drafting=False)})

    def told(call: WatchCall, *, was_off: bool) -> list[str]:
        follow = watch_pb2.FollowNamespace(namespace=PATH, drafting_off=was_off)
        call.send(watch_pb2.WatchRequest(follow=follow))
        kinds = []
        while not kinds or kinds[-1] != "live":
            reply = call.next()
            kind = str(reply.WhichOneof("reply"))
            if kind in kinds:
                continue  # more outputs
            kinds.append(kind)
            if kinds[-1] == "drafting":
                assert reply.drafting.namespace == PATH
                kinds[-1] += " off" if reply.drafting.off else " on"
        return kinds

    with SuffixCache() as cache, socket_dir() as folder:
        cache.namespace(PATH).add_output(SECRET)
        with serving(cache, f"unix:{folder / 's.sock'}") as (server, address):
            for policies, was_off, expected in (
                (Policies(), False, []),
                (Policies(), True, ["drafting on"]),
                (off, False, ["drafting off"]),
                (off, True, []),
            ):
                cache.set_policies(policies)
                with WatchCall(address, hello()) as call:
                    kinds = told(call, was_off=was_off)
                    assert kinds == ["welcome", *expected, "contents", "outputs", "live"], kinds
                    if policies is off:
                        cache.set_policies(Policies())
                        server.handlers.followers.check_rights()
                        reply = call.next()
                        assert (reply.drafting.namespace, reply.drafting.off) == (PATH, False)


def test_an_invalid_value_leaves_the_last_valid_file_in_use(service: ControlledService) -> None:
    from suffixsvc.errors import InvalidConfigError

    with service.client("alice") as client:
        session = client.namespace(PATH).open_session([1, 2, 3, *SECRET[:4]])
        with pytest.raises(InvalidConfigError, match="drafting"):
            service.set_policy(GRANTS + '[namespaces."acme"]\ndrafting = "no"\n')
        assert drafts(session) == SECRET[4:12]
        session.close(commit=False)


def test_figures_show_what_is_off(service: ControlledService) -> None:
    service.set_policy(GRANTS + OFF)
    with service.client("alice") as client:
        session = client.namespace(PATH).open_session([1, 2, 3, *SECRET[:4]])
        assert drafts(session) == []
        summaries = {each.path: each.drafting_off for each in client.namespace_summaries()}
        assert summaries == {PATH: 1, OTHER: 0}
        session.close(commit=False)
    registry = service_registry(service.cache, service.server.handlers)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"suffixsvc_{name}", labels)

    assert sample("spec_decode_num_misses_total", namespace=PATH, reason="off") == 1
    assert sample("drafting_off", namespace=PATH) == 1
    assert sample("drafting_off", namespace=OTHER) == 0


def test_top_shows_what_is_off() -> None:
    from suffixsvc import Policies, Policy
    from support.serving import serving, socket_dir

    with SuffixCache(policies=Policies({PATH: Policy(drafting=False)})) as cache, socket_dir() as folder:
        cache.namespace(PATH).add_output(SECRET)
        with serving(cache, f"unix:{folder / 's.sock'}") as (_, address):
            shown = run_verb("top", "--once", "--json", "--server", address).stdout
            [found] = json.loads(shown)["namespaces"]
            assert found["drafting_off"] is True
            lines = run_verb("top", "--once", "--server", address).stdout.splitlines()
            [line] = [line for line in lines if PATH in line]
            assert " off" in line
            assert "drafting_off\t1" in run_verb("stats", PATH, "--server", address).stdout
