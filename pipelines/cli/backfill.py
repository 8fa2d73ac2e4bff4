"""The commands of past scheduled runs: backfill, and the table of scheduled runs that `status` shows."""

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
    from pipelines.schedule import ScheduledRunStatus
    from pipelines.stages.planned_readings import Missing


def backfill(
    corpus: CorpusArgument,
    first: Annotated[
        str | None, typer.Option("--from", help="Start at this date, such as 2026-11-01; default: the first.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="End at this date; default: the newest.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Ask questions never asked.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Ask again where reading failed.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Do both, and replace answers of other model versions.")] = False,
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
    """Answer default questions that past scheduled runs missed or failed."""
    from pipelines.backfill import Dates
    from pipelines.backfill import backfill as run_backfill
    from pipelines.formatting import exit_status

    if not (missing or failed or every):
        raise UsageError("specify --missing, --failed or --all")
    only: list[Missing] = []
    if missing or every:
        only.append("missing")
    if failed or every:
        only.append("failed")
    dates = Dates(day(first, "--from") if first else None, day(last, "--to") if last else None)
    settings = configured(store, config, set_, model=model, engine=engine, wait=wait, budget=budget)
    with display(json_) as show:
        summary = run_backfill(corpus, settings, dates, only, every=every, run_id=run_id, show=show)
    finish(summary, json_, exit_status(summary))


def show_scheduled_runs(corpus: str, scheduled_runs: Sequence["ScheduledRunStatus"]) -> None:
    """Print a table of scheduled runs."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    from pipelines.formatting import number

    console = Console()
    if not scheduled_runs:
        console.print(Text(f"{corpus}: no scheduled run yet: memagent digest {corpus} --questions FILE"))
        return
    grid = Grid(box=None, header_style="dim", pad_edge=False)  # narrow: 80 columns hold it
    for name in ("date", "state", "run"):
        grid.add_column(name, no_wrap=True)
    for name in ("asked", "failed", "left"):
        grid.add_column(name, no_wrap=True, justify="right")
    for scheduled in scheduled_runs:
        counts = (
            [number(scheduled[name]) for name in ("readings", "failed", "unread")]
            if scheduled["run_id"]
            else ["", "", ""]
        )
        state = f"late, {scheduled['state']}" if scheduled["late"] else scheduled["state"]
        grid.add_row(scheduled["date"], state, scheduled["run_id"], *counts)
    console.print(grid)
