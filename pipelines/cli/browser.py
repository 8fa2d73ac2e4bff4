"""Reports in the user's browser."""

import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from infra.store import Store


def open_report(store: "Store", run_id: str) -> None:
    """Write a run's report beside the run, or to a temporary file where that is on S3, and show it."""
    from pipelines.report import write, write_to_store

    if store.is_s3:
        path = write(store, run_id, Path(tempfile.mkdtemp(prefix="memagent-")) / f"{run_id}.html")
    else:
        path = Path(write_to_store(store, run_id))
    typer.echo(str(path), err=True)
    show_file(path)


def show_file(path: Path) -> None:
    """Show a file in the browser; where there is none, its path was printed."""
    webbrowser.open(path.absolute().as_uri())
