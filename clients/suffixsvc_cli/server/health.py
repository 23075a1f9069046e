"""``suffixsvc health``: whether a server answers, for the health checks of containers and supervisors."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from suffixsvc.errors import InvalidConfigError, SuffixError

#: the service's health name for its store
_DURABILITY: Final = "suffixsvc.v1.SuffixCache/durability"


def health(
    address: Annotated[
        str,
        typer.Argument(
            envvar="SUFFIXSVC_SERVE_LISTEN",
            show_envvar=False,
            show_default="the first address of $SUFFIXSVC_SERVE_LISTEN",
            help="unix:PATH or HOST:PORT of a service or draft worker, http://HOST:PORT of suffixsvc openai.",
        ),
    ] = "",
    durability: Annotated[
        bool, typer.Option("--durability", help="Also ask whether the service can store outputs.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 5.0,
) -> None:
    """Ask a service, draft worker or OpenAI-compatible server whether it serves: exit code 0 if so, else 1.

    A server that drains does not serve. TLS as the environment says (docs/security.md); no token is needed,
    except for the reason why a service cannot store.
    docs/deployment.md.
    """
    if not address.split():
        raise InvalidConfigError(
            "ADDRESS or $SUFFIXSVC_SERVE_LISTEN must be given",
            expected="unix:PATH, HOST:PORT or http://HOST:PORT",
            got="neither",
        )
    first = address.split()[0]
    if first.startswith(("http://", "https://")):
        answer = _http(first, timeout)
    else:
        answer = _grpc(first, timeout, durability=durability)
    typer.echo(answer or "serving")
    if answer:
        raise typer.Exit(1)


def _http(url: str, timeout: float) -> str:
    """Return why the server does not serve, or ""."""
    import http.client
    import urllib.error
    import urllib.request

    from suffixsvc.transport.identity import ClientIdentity

    tls = ClientIdentity.from_environment().tls
    context = None if tls is None else tls.ssl_context()
    try:
        address = f"{url.rstrip('/')}/health"
        with urllib.request.urlopen(address, timeout=timeout, context=context):  # noqa: S310 - http, https
            return ""
    except urllib.error.HTTPError as error:
        return f"not serving: {error.read(300).decode(errors='replace')}"
    except (http.client.InvalidURL, ValueError) as error:
        raise InvalidConfigError("ADDRESS must be a URL", expected="http://HOST:PORT", got=error) from None
    except OSError as error:
        return f"not reachable: {getattr(error, 'reason', error)}"


def _grpc(address: str, timeout: float, *, durability: bool) -> str:
    """Return why the service does not serve, or "".

    Raises:
        InvalidConfigError: invalid address.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from suffixsvc.transport.channels import Channels, close_channel
    from suffixsvc.transport.identity import ClientIdentity, tls_remedy
    from suffixsvc.transport.peer_credentials import ExpectedPeer

    # without the client, whose modules take longer to load than the answer takes
    trust = "Have the service listen in a folder that only its user can write to."
    peer = ExpectedPeer("the service", "Is it running, and is this its address?", trust)
    identity = ClientIdentity.from_environment()
    channels: Channels[grpc.Channel] = Channels(
        address, peer, lambda target: identity.channel(target, ()), close_channel
    )
    try:
        with channels.use() as held:
            stub = health_pb2_grpc.HealthStub(held.channel)
            for name in ("", _DURABILITY) if durability else ("",):
                reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout)
                if reply.status != health_pb2.HealthCheckResponse.SERVING:
                    state = reply.ServingStatus.Name(reply.status)
                    reason = _store_failure(address, timeout) if name == _DURABILITY else ""
                    return f"not serving: {name or 'the service'} is {state}{reason}"
    except grpc.RpcError as error:
        remedy = tls_remedy(error.details() or "")
        return f"not reachable: {error.code().name}: {error.details()}{f'. {remedy}' if remedy else ''}"
    except InvalidConfigError:
        raise
    except SuffixError as error:  # no process listens, or one of another user
        return f"not reachable: {error}"
    finally:
        channels.close()
    return ""


def _store_failure(address: str, timeout: float) -> str:
    """Why the service cannot store, after a colon; "" if it does not say so to the environment's identity."""
    from suffixsvc_client import ClientConfig, SuffixClient

    try:
        with SuffixClient(address, ClientConfig(call_timeout_s=timeout)) as client:
            failure = client.server_info().store_failure
    except SuffixError:
        return ""
    return "" if failure is None else f": {failure}"
