"""The backend of a process that decodes: a follower where that is possible, else a client."""

from __future__ import annotations

from collections.abc import Iterable

from suffixsvc.config import validate_mode, validate_namespace
from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError
from suffixsvc.types import Mode
from suffixsvc_client import SuffixClient
from suffixsvc_follower.config import FollowerConfig
from suffixsvc_follower.follower import Follower
from suffixsvc_follower.stream.connection import FollowState


def connect(
    address: str,
    namespaces: Iterable[str | tuple[str, str]] = (),
    mode: Mode = "auto",
    config: FollowerConfig | None = None,
) -> Follower | SuffixClient:
    """Connect to a service; the backend that drivers and adapters take.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``.
        namespaces: those to follow at once, each a path, or (path, tokenizer fingerprint). All others are
            followed from the first session on.
        mode: "auto": drafts are taken in this process where the service allows that, and by the service
            otherwise; a service that is not reachable yet is no error, and decides later. "follow": an error
            where it does not allow it. "remote": by the service.
        config: limits and timers.

    Returns:
        A follower, or with ``mode="remote"`` a client.

    Raises:
        InvalidConfigError, InvalidNamespaceError: an argument is wrong.
        SuffixError: with ``mode="follow"``, why the service does not let this process follow.
    """
    validate_mode(mode)
    settings = config or FollowerConfig()
    if isinstance(namespaces, str):
        raise InvalidConfigError(
            "namespaces must be a list of paths, or of (path, tokenizer)",
            got=f"the string {namespaces!r}",
            remedy=f"Pass [{namespaces!r}].",
        )
    named = [(each, "") if isinstance(each, str) else each for each in namespaces]
    for path, _ in named:
        validate_namespace(path)
    if mode == "remote":
        return SuffixClient(address, settings.client)
    follower = Follower(address, settings, named)
    state = follower.wait_for_answer(settings.connect_seconds)
    if mode == "follow" and state is not FollowState.FOLLOWING:
        error = follower.refusal or ServiceUnavailableError(
            f"the service at {address} must let this process follow",
            expected=f"an answer within {settings.connect_seconds} s",
            got=follower.outage or "none",
            remedy="Start it, or wait longer for it: FollowerConfig(connect_seconds=...).",
        )
        follower.close()
        raise error
    return follower
