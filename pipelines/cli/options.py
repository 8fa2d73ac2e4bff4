"""Shared by the commands: common options, the configuration from them, and exit status."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from infra.cluster.progress import Progress
from memagent.config import Config, load_config
from memagent.errors import UsageError

StoreOption = Annotated[
    str | None, typer.Option("--store", help="Use this store: folder or s3:// URL (or $MEMAGENT_STORE).")
]
ConfigOption = Annotated[str | None, typer.Option("--config", help="Read configuration from this TOML file.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Set a key: section.key=value; may be repeated.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Use this model: nano, a folder, or a Hugging Face name.")
]
EngineOption = Annotated[
    str | None, typer.Option("--engine", help="Use this engine: vllm, openai, scripted, or a plugin's.")
]
HOST = "127.0.0.1"
HostOption = Annotated[
    str,
    typer.Option(help="Listen on this address; put a TLS proxy before it."),
]
UrlOption = Annotated[str | None, typer.Option(help="Accept requests under this URL of a proxy.")]
ParallelSpansOption = Annotated[
    int | None, typer.Option("--parallel-spans", help="Read a document in this many parts in parallel.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output.")]
AnswersOption = Annotated[bool, typer.Option("--answers/--no-answers", help="Include answers in the --json output.")]
RunIdOption = Annotated[str | None, typer.Option("--run-id", hidden=True, help="Name this run.")]
WaitOption = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait for conflicting runs."),
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Estimate the work; read nothing.")]
log_format: str | None = None
"""`--log-format`, which stands before the command; None: as configured."""
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", help="Stop at this budget: 90min, 2h, 5Mtok or 12.50EUR (`cost.budget`)."),
]
CorpusArgument = Annotated[str, typer.Argument(help="Name of the corpus.")]


def configured(
    store: str | None,
    config: str | None,
    sets: list[str] | None,
    model: str | None = None,
    engine: str | None = None,
    parallel_spans: int | None = None,
    wait: bool = True,
    budget: str | None = None,
    force: bool = False,
) -> Config:
    """Return the configuration from a command's options."""
    settings = load_config(
        config,
        sets,
        store=store,
        engine__model=model,
        engine__kind=engine,
        reading__parallel_spans=parallel_spans,
        wait=None if wait else False,
        logging__format=log_format,
        cost__budget=budget,
        quality__withhold=False if force else None,
    )
    if "://" not in settings.store:
        # Ray workers and Prefect runs have other working directories.
        folder = Path(settings.store).expanduser().resolve()
        _check_folder(folder)
        settings = settings.model_copy(update={"store": str(folder)})
    elif settings.store.startswith("s3://"):
        from infra.store import Store

        Store(settings.store).check_reachable()
    return settings


def _check_folder(folder: Path) -> None:
    """Refuse a store that can be no folder; what would be made is not made yet."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir():
        raise UsageError(f"store {folder}: {there} is a file; a store is a folder or an s3:// URL")
    if there != folder and not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"store {folder}: no folder can be made in {there}")


@contextmanager
def display(json_: bool) -> Iterator[Progress | None]:
    """Show progress while the body runs, except with --json."""
    if json_:
        yield None
        return
    from pipelines.cli.live import Display

    with Display() as display:
        yield display.update


def finish(summary: Mapping[str, Any], json_: bool, status: int) -> NoReturn:
    """Print a summary and exit with a status."""
    if json_:
        out(summary)
    else:
        from rich.console import Console

        from pipelines.cli.live import summary as show_summary
        from pipelines.cli.rollup import show_gates, show_held, show_rollup

        console = Console()
        if summary.get("rollup"):
            show_rollup(console, summary["rollup"], summary["corpus"], summary["run_id"])
        show_summary(console, summary)
        show_gates(console, summary)
        show_held(console, summary)
    raise typer.Exit(status)


def out(data: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(data, default=str))
