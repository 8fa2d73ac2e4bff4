"""The commands of past nights: backfill, and the table of nights that `status` shows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.cost import day
from pipelines.cli.options import (
    BudgetOption,
    ConfigOption,
    CorpusArgument,
    EngineOption,
    JsonOption,
    ModelOption,
    RunIdOption,
    SetOption,
    StoreOption,
    WaitOption,
    configured,
    display,
    finish,
)

if TYPE_CHECKING:
    from pipelines.nights import NightStatus
    from pipelines.stages.planned_readings import Missing


def backfill(
    corpus: CorpusArgument,
    first: Annotated[
        str | None, typer.Option("--from", help="First night, as 2026-11-01; by default the first.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last night; by default the newest.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Answers that were never sought.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Answers that failed.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Both, and what other versions of the model have answered.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    wait: WaitOption = True,
    budget: BudgetOption = None,
    json_: JsonOption = False,
    run_id: RunIdOption = None,
) -> None:
    """Answer the standing questions for documents of past nights whose answers are missing or failed."""
    from pipelines.backfill import Nights
    from pipelines.backfill import backfill as run_backfill
    from pipelines.formatting import exit_status

    if not (missing or failed or every):
        raise UsageError("which answers? give --missing, --failed, or --all")
    only: list[Missing] = []
    if missing or every:
        only.append("missing")
    if failed or every:
        only.append("failed")
    nights = Nights(day(first, "--from") if first else None, day(last, "--to") if last else None)
    settings = configured(store, config, set_, model=model, engine=engine, wait=wait, budget=budget)
    with display(json_) as show:
        summary = run_backfill(corpus, settings, nights, only, every=every, run_id=run_id, show=show)
    finish(summary, json_, exit_status(summary))


def show_nights(corpus: str, nights: Sequence["NightStatus"]) -> None:
    """Print a table of nights."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    from pipelines.formatting import number

    console = Console()
    if not nights:
        console.print(Text(f"{corpus}: no night yet: memagent digest {corpus} --questions FILE"))
        return
    grid = Grid(box=None, header_style="dim", pad_edge=False)  # narrow: 80 columns hold it
    for name in ("night", "state", "run"):
        grid.add_column(name, no_wrap=True)
    for name in ("asked", "failed", "left"):
        grid.add_column(name, no_wrap=True, justify="right")
    for night in nights:
        counts = [number(night[name]) for name in ("readings", "failed", "unread")] if night["run_id"] else ["", "", ""]
        state = f"late, {night['state']}" if night["late"] else night["state"]
        grid.add_row(night["night"], state, night["run_id"], *counts)
    console.print(grid)
