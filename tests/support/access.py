"""Services with access control: tokens, policies that change, and clients of principals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.access.tokens import TokenFile
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import serving

#: a token of every principal that a test names
Tokens = Mapping[str, str]


class ControlledService:
    """A service in this process on loopback TCP, with a token for each principal.

    Args:
        folder: of its files, and of its data unless ``cache`` is given.
        principals: that have a token.
        policy: text of its policy file.
    """

    def __init__(self, folder: Path, principals: tuple[str, ...], policy: str = "[principals]\n") -> None:
        self.policy_path = folder / "policies.toml"
        self.policy_path.write_text(policy)
        self.token_file = TokenFile(folder / "tokens.toml")
        self.tokens = {name: self.token_file.create(name) for name in principals}
        self.access = AccessControl(self.token_file, self.policy_path)
        self.address = ""
        self.server: Any = None
        self.cache: Any = None

    @contextlib.contextmanager
    def run(self, cache: SuffixCache, **options: Any) -> Iterator[ControlledService]:
        """Serve for the block."""
        with serving(cache, "127.0.0.1:0", access=self.access, **options) as (self.server, self.address):
            self.cache = cache
            yield self

    def client(self, principal: str, **config: Any) -> SuffixClient:
        """A client of a principal; "": without a token."""
        return SuffixClient(self.address, self.config(principal, **config))

    def config(self, principal: str, **config: Any) -> ClientConfig:
        """The configuration of a client of a principal."""
        identity = ClientIdentity(token=self.tokens.get(principal)) if principal else ClientIdentity()
        patient = {"step_timeout_s": 60.0, "open_timeout_s": 60.0, "call_timeout_s": 60.0}
        return ClientConfig(identity=identity, **(patient | config))

    def set_policy(self, text: str) -> None:
        """Replace the policy, and have it applied."""
        write_atomically(self.policy_path, text)
        self.access.refresh()

    def revoke(self, principal: str) -> None:
        """Revoke the token of a principal, and have that applied."""
        self.token_file.revoke([self.tokens[principal]])
        self.access.refresh()
