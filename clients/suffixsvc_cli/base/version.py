"""``suffixsvc version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import typer


def version() -> None:
    """Print the versions of suffixsvc, Python and the main dependencies."""
    typer.echo(f"suffixsvc {_of('suffixsvc')}")
    typer.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("grpcio", "lmdb", "numpy", "llama-cpp-python"):
        typer.echo(f"{package} {_of(package)}")


def _of(package: str) -> str:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return "not installed"
