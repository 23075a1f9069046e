"""What the service remembers of a follower is bounded by what it follows, not by what it asked for."""

from __future__ import annotations

from suffixsvc import SuffixCache
from support.serving import serving, socket_dir
from support.watching import WatchReader

ASKED = 200


def test_paths_that_are_not_followed_any_more_are_forgotten() -> None:
    with (
        socket_dir() as folder,
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s") as (server, address),
    ):
        cache.namespace("acme/kept").add_output([1, 2, 3])
        with WatchReader(address) as reader:
            for number in range(ASKED):
                reader.follow(f"acme//{number}")  # no path of a namespace: refused
                reader.follow(f"acme/{number}")
                reader.unfollow(f"acme/{number}")
            reader.follow("acme/kept")
            reader.until(lambda: "acme/kept" in reader.held, "the contents of the last namespace")
            [follower] = server.handlers.followers.registry._followers.values()
            assert set(follower.namespaces) == {"acme/kept"}
            assert set(follower.unlearned) <= {"acme/kept"}
