"""Access control of one server: the tokens and the policy of its files, read again when they change.

A file replaces what was read before only if all of it is valid. Revoked tokens, and rights that were taken
away, end calls in progress: :meth:`AccessControl.refresh` reports changes to its listeners.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.access.grants import Grants
from suffixsvc.access.policy_file import PolicyFile, read_policy_file
from suffixsvc.access.principals import EVERY, OPERATOR, Right
from suffixsvc.access.rate_limits import PrincipalLimits, RateLimiter
from suffixsvc.access.tokens import TokenFile, Tokens
from suffixsvc.access.user_tickets import TICKET_PREFIX, UserTickets
from suffixsvc.errors import InvalidConfigError, UnauthenticatedError
from suffixsvc.policies import Policies
from suffixsvc.runtime.file_signature import Signature, file_signature
from suffixsvc.transport.peer_credentials import REPORTS_USERS
from suffixsvc.transport.user_tickets import TicketMessage

log = structlog.get_logger(__name__)

_UNLIMITED: Final = PrincipalLimits()
_REMEDY: Final = (
    "Set SUFFIXSVC_TOKEN_FILE or SUFFIXSVC_TOKEN for the client, which sends the header "
    "'authorization: Bearer TOKEN'; `suffixsvc token create` makes a token."
)

_TICKET_REMEDY: Final = (
    "A client of this release fetches a ticket of its user beside the socket; others send the header "
    "'authorization: Bearer TOKEN'."
)
#: permissions of a unix socket that only the server's own user can open
OWNER_ONLY: Final = 0o600


class Peer(enum.Enum):
    """Where a call came from."""

    UNIX_SOCKET = "a unix socket"
    LOOPBACK = "a loopback address"
    NETWORK = "another machine"


class AccessControl:
    """Authenticates callers, and knows their rights. Thread-safe.

    Args:
        tokens: file of the tokens; None: there are none. It need not exist yet.
        policy: policy file; None: no limits, and every principal has its own prefix only.
        insecure_network: callers from other machines are treated as those of this one.
        required: callers must be authenticated even while no token and no principal is named.
        socket_mode: permissions of the server's unix sockets. If other users can open them, all callers must
            be authenticated, and those at a unix socket prove their user with a ticket (user_tickets.py).

    Raises:
        InvalidConfigError: a file is invalid, or this system does not report the users of sockets.
    """

    def __init__(
        self,
        tokens: TokenFile | None = None,
        policy: Path | None = None,
        *,
        insecure_network: bool = False,
        required: bool = False,
        socket_mode: int = OWNER_ONLY,
    ) -> None:
        if socket_mode != OWNER_ONLY and not REPORTS_USERS:
            raise InvalidConfigError(
                "--socket-mode must be 0600: this system does not report the users of sockets",
                got=f"{socket_mode:04o}",
                remedy="Listen on HOST:PORT, with tokens.",
            )
        self._token_file = tokens
        self._policy_path = policy
        self._insecure_network = insecure_network
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []
        self._public: tuple[str, ...] = ()
        self.socket_mode = socket_mode
        self._tickets = UserTickets() if self.shares_sockets else None
        self._required = required or self.shares_sockets
        self.rates = RateLimiter()
        # signatures first: a change while a file is read is found by the next refresh
        self._token_signature = file_signature(None if tokens is None else tokens.path)
        self._policy_signature = self._seen_policy = file_signature(policy)
        #: of a file of tokens that is invalid
        self._invalid_tokens: Signature | None = None
        self._use_tokens(Tokens() if tokens is None else tokens.read())
        self._use_policy(PolicyFile() if policy is None else read_policy_file(policy))

    @property
    def shares_sockets(self) -> bool:
        """Whether other users can open the server's unix sockets."""
        return self.socket_mode != OWNER_ONLY

    @property
    def required(self) -> bool:
        """Whether callers must be authenticated. It stays true: a removed file opens nothing."""
        return self._required

    @property
    def principals(self) -> frozenset[str]:
        """Those that a token, a certificate or a user stands for."""
        policy = self._policy.access
        of_tokens = (token.principal for token in self._tokens)
        return frozenset((*of_tokens, *policy.certificates.values(), *policy.users.values()))

    @property
    def shared(self) -> bool:
        """Whether tokens and certificates stand for several principals."""
        return self._required and len(self.principals) > 1

    @property
    def insecure_network(self) -> bool:
        """Whether callers from other machines are treated as those of this one."""
        return self._insecure_network

    @property
    def policies(self) -> Policies:
        """Limits of namespaces, of the policy file."""
        return self._policy.policies

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call a function after tokens or policy have changed, in the thread of :meth:`refresh`."""
        self._listeners.append(listener)

    def make_public(self, paths: Sequence[str]) -> None:
        """Let every principal read and follow namespaces: those that sessions read by default.

        Of a namespace whose policy has ``min_principals`` they read the published runs.
        """
        with self._lock:
            self._public = tuple(paths)
            self._grants = self._with_public(self._policy)

    # ------------------------------------------------------------------------------------ authentication

    def authenticate(self, token: str | None, certificate_names: Sequence[str], peer: Peer) -> Caller:
        """Return who makes a call.

        Args:
            token: the presented bearer token, or the ticket of a user; None: none is presented. Without a
                file of tokens a token is ignored: a client may send that of another service, and OpenAI's
                clients always send one.
            certificate_names: of the client's verified certificate: subject alternative names, common name.
            peer: where the call came from.

        Raises:
            UnauthenticatedError: the token is not valid, or neither token nor certificate names a principal.
        """
        if token is not None and self._tickets is not None and token.startswith(TICKET_PREFIX):
            return self._caller_of_ticket(self._tickets.user_of(token), peer)
        if token is not None and self._token_file is not None:
            return self._caller_of_token(token)
        of_certificate = self._policy.access.certificates
        for name in certificate_names:
            if (principal := of_certificate.get(name)) is not None:
                return self._caller(principal, f"certificate {name}")
        if peer is Peer.UNIX_SOCKET and self._tickets is None:
            return self._caller(OPERATOR, f"user {os.geteuid()}")
        open_to = peer is not Peer.NETWORK or self._insecure_network
        if open_to and not self._required:
            return self._caller(OPERATOR, "none")
        raise UnauthenticatedError(
            "the caller must present a token, or a certificate that names a principal",
            got=f"none, from {peer.value}"
            if not certificate_names
            else f"certificate of {certificate_names[0]!r}",
            remedy=_TICKET_REMEDY if peer is Peer.UNIX_SOCKET else _REMEDY,
        )

    def is_valid(self, caller: Caller) -> bool:
        """Whether the credential of a caller that was authenticated before would still be accepted."""
        kind, _, name = caller.credential.partition(" ")
        if kind == "token":
            return self._tokens.holds(name, datetime.now(UTC))
        if kind == "certificate":
            return self._policy.access.certificates.get(name) == caller.principal
        if kind == "user":
            return self._tickets is None or self._principal_of_user(int(name)) == caller.principal
        return not self._required

    def identify_user(self, uid: int) -> TicketMessage:
        """The answer of an identity socket to a user."""
        if self._tickets is None or self._principal_of_user(uid) is None:
            self.rates.refusals.count_user(uid)
            return TicketMessage(uid, None)
        return TicketMessage(uid, self._tickets.issue(uid), self._tickets.lifetime_s)

    def _principal_of_user(self, uid: int) -> str | None:
        """The operator for the server's own user and for root, who can read its files."""
        return OPERATOR if uid in (0, os.geteuid()) else self._policy.access.users.get(uid)

    def _caller_of_ticket(self, uid: int | None, peer: Peer) -> Caller:
        principal = None if uid is None else self._principal_of_user(uid)
        if uid is None or peer is not Peer.UNIX_SOCKET:
            raise UnauthenticatedError(
                "the ticket of a user must be a current one of this service, presented at its unix socket",
                got="one that is expired, or of another server" if uid is None else f"one from {peer.value}",
                remedy="Fetch a ticket at the identity socket beside the unix socket.",
            )
        if principal is None:
            raise UnauthenticatedError(
                f"a principal must have the user id {uid}",
                got="none",
                remedy=f'An operator can name one: [principals."NAME"] uids = [{uid}].',
            )
        return self._caller(principal, f"user {uid}")

    def _caller_of_token(self, presented: str) -> Caller:
        found = self._tokens.find(presented, datetime.now(UTC))
        if found is None and self._token_file is not None:
            signature = file_signature(self._token_file.path)
            if signature not in (self._token_signature, self._invalid_tokens):  # a new token need not wait
                with contextlib.suppress(InvalidConfigError):  # the operator's error, not the caller's
                    self._refresh(self._refresh_tokens)
            found = self._tokens.find(presented, datetime.now(UTC))
        if found is None:
            raise UnauthenticatedError(
                "the token must be one of this service: it is unknown, revoked or expired", remedy=_REMEDY
            )
        return self._caller(found.principal, f"token {found.id}")

    def _caller(self, principal: str, credential: str) -> Caller:
        return Caller(principal, credential, self)

    # ------------------------------------------------------------------------------------------- rights

    def rights(self, principal: str, path: str) -> frozenset[Right]:
        """The rights of a principal on a namespace at this moment."""
        return self._grants.rights(principal, path)

    def everywhere(self, principal: str, right: Right) -> bool:
        """Whether a principal has a right on every namespace at this moment."""
        return self._grants.everywhere(principal, right)

    def limits(self, principal: str) -> PrincipalLimits:
        """The limits of a principal at this moment; the operator has none."""
        if principal == OPERATOR:
            return _UNLIMITED
        found = self._limits.get(principal)
        return self._default_limits if found is None else found

    # ------------------------------------------------------------------------------------------ reading

    def refresh(self) -> None:
        """Read the files that have changed, and tell the listeners.

        A policy file that is changed in place is used by the second call that finds it the same.

        Raises:
            InvalidConfigError: a file is invalid. What was read of it before stays in use, the other file is
                read all the same; each call tries again.
        """
        self._refresh(self._refresh_tokens, self._refresh_policy)

    def _refresh(self, *files: Callable[[], bool]) -> None:
        invalid: InvalidConfigError | None = None
        changed = False
        with self._lock:
            for refresh_file in files:
                try:
                    changed = refresh_file() or changed
                except InvalidConfigError as error:
                    invalid = invalid or error
        if changed:
            for listener in tuple(self._listeners):
                listener()
        if invalid is not None:
            raise invalid

    def _refresh_tokens(self) -> bool:
        if self._token_file is None:
            return False
        signature = file_signature(self._token_file.path)
        if signature == self._token_signature:
            return False
        self._invalid_tokens = signature
        _require_regular(self._token_file.path)
        self._use_tokens(self._token_file.read())
        self._token_signature = signature
        log.info("tokens were read again", tokens=len(self._tokens))
        return True

    def _refresh_policy(self) -> bool:
        if self._policy_path is None:
            return False
        signature = file_signature(self._policy_path)
        if signature == self._policy_signature:
            return False
        seen, self._seen_policy = self._seen_policy, signature
        if signature != seen and _is_same_file(signature, seen):
            return False  # it may be half written, and its beginning alone grant more than all of it
        _require_regular(self._policy_path)
        policy = read_policy_file(self._policy_path)
        if self._policy.access.required and not policy.access.required:
            raise InvalidConfigError(
                f"policies file {self._policy_path} must have a table [principals], as it had before",
                got="none",
                remedy="Write an empty one if no principal is to have a grant.",
            )
        self._use_policy(policy)
        self._policy_signature = signature
        log.info("the policy file was read again", file=str(self._policy_path))
        return True

    def _with_public(self, policy: PolicyFile) -> Grants:
        rights = {
            path: Right.READ if policy.policies.of(path).min_principals else Right.FOLLOW
            for path in self._public
        }
        return policy.access.grants.with_public(rights)

    def _use_tokens(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._required = self._required or len(tokens) > 0

    def _use_policy(self, policy: PolicyFile) -> None:
        own_user = policy.access.users.get(os.geteuid())
        if own_user is not None:
            raise InvalidConfigError(
                f"uids of the principal {own_user!r} must not have the server's own user: it is the operator",
                got=os.geteuid(),
                remedy="Run the server as another user.",
            )
        self._policy = policy
        self._grants = self._with_public(policy)
        self._default_limits = policy.access.limits_of(EVERY)
        self._limits = {name: policy.access.limits_of(name) for name in policy.access.limits}
        self._required = self._required or policy.access.required


def _is_same_file(signature: Signature | None, other: Signature | None) -> bool:
    """Whether two signatures are of one inode: the file was changed in place, not replaced."""
    return signature is not None and other is not None and signature[:2] == other[:2]


def _require_regular(path: Path) -> None:
    """Raise InvalidConfigError for a pipe or device, which would hold up every call that waits for it."""
    if path.exists() and not path.is_file():
        raise InvalidConfigError(f"{path} must be a regular file", got="a pipe, device or folder")
