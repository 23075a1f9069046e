"""``suffixsvc policy``: check a policy file, and explain what it permits."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.groups import verb_group
from suffixsvc_cli.base.options import AsJson


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="A policy file.")], as_json: AsJson = False
) -> None:
    """Check a policy file whole, as the service does when it reads it. Exit code 0: it is valid.

    A running service that finds an invalid file keeps the last valid one.
    """
    from suffixsvc.access.policy_file import read_policy_file

    found = read_policy_file(file)
    principals, grants = found.access.principals, len(found.access.grants)
    if as_json:
        typer.echo(json.dumps({"valid": True, "principals": list(principals), "grants": grants}))
        return
    if not found.access.required:
        typer.echo(f"{file}: valid; it has no table [principals], so that callers need no identity")
    else:
        typer.echo(f"{file}: valid; {len(principals)} principals, {grants} grants")


def explain(
    principal: Annotated[str, typer.Argument(help="Name of a principal.")],
    namespace: Annotated[str, typer.Argument(help="Path of a namespace, which need not exist.")],
    policies: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Policy file.", show_default="none: own prefix only"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain what a principal may do with a namespace, and which lines of the policy file say so.

    Then the limits of the namespace follow, and those of the principal.

    suffixsvc policy explain sql-agents acme/sql --policies policies.toml
    """
    from suffixsvc.access.policy_file import PolicyFile, read_policy_file
    from suffixsvc.access.principals import EVERY, Right, validate_principal
    from suffixsvc.config import validate_namespace

    validate_principal(principal, "PRINCIPAL")
    validate_namespace(namespace)
    read = PolicyFile() if policies is None else read_policy_file(policies)
    reasons = {
        right: [g.source for g in read.access.grants.of(principal, namespace) if right in g.right.includes]
        for right in Right
    }
    policy = read.policies.of(namespace)
    limits = {name: value for name, value in asdict(policy).items() if value is not None}
    # as Caller.sees_all decides it
    access = read.access
    of_principal = asdict(access.limits_of(principal)) | asdict(read.policies.quota_of(principal))
    of_principal = {name: value for name, value in of_principal.items() if value is not None}
    published_only = bool(policy.min_principals and reasons[Right.READ] and not reasons[Right.FOLLOW])
    if as_json:
        rights = {right.value: given for right, given in reasons.items()}
        found = {"principal": principal, "namespace": namespace, "rights": rights, "limits": limits}
        more = {"limits_of_principal": of_principal, "named": principal in access.principals}
        typer.echo(json.dumps(found | more | {"published_runs_only": published_only}))
        return
    if principal not in access.principals:
        typer.echo(f"{principal!r} has no table in the file: it has what {EVERY!r} has, and its own prefix")
    for right, given in reasons.items():
        only = "published runs only, " if right is Right.READ and published_only else ""
        typer.echo(f"{right.value}\t{f'yes: {only}' + '; '.join(given) if given else 'no'}")
    for name, value in limits.items():
        typer.echo(f"{name}\t{value}")
    for name, value in of_principal.items():
        typer.echo(f"{name} of {principal}\t{value}")


app = verb_group("Check policy files and explain what they permit (docs/security.md).", check, explain)
