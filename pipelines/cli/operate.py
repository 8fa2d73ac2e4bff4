"""The commands of past scheduled runs: backfill, and the table of scheduled runs that `status` shows."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memagent.errors import UsageError
from pipelines.cli.options import Common, CorpusArgument, JsonOption, display, finish, out, takes
from pipelines.views.formatting import RUN_ID_CHARS, duration, exit_status, number, plain

if TYPE_CHECKING:
    from infra.engines.warm import WarmEngineInfo
    from pipelines.operate.cost import CostTable
    from pipelines.schedule import ScheduledRunStatus
    from pipelines.stages.planned_readings import Missing


@takes("model", "engine", "wait", "budget", "max_failed", "json", "run_id")
def backfill(
    given: Common,
    corpus: CorpusArgument,
    first: Annotated[
        str | None, typer.Option("--from", help="Start at this date, such as 2026-11-01; default: the first.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="End at this date; default: the newest.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Ask questions never asked.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Ask again where reading failed.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Do both, and replace answers of other model versions.")] = False,
) -> None:
    """Answer default questions that past scheduled runs missed or failed."""
    from pipelines.operate.backfill import Dates
    from pipelines.operate.backfill import backfill as run_backfill

    if not (missing or failed or every):
        raise UsageError("specify --missing, --failed or --all")
    only: list[Missing] = []
    if missing or every:
        only.append("missing")
    if failed or every:
        only.append("failed")
    dates = Dates(day(first, "--from") if first else None, day(last, "--to") if last else None)
    with display(given.json) as show:
        summary = run_backfill(corpus, given.settings, dates, only, every=every, run_id=given.run_id, show=show)
    finish(summary, given.json, exit_status(summary))


def show_scheduled_runs(corpus: str, scheduled_runs: Sequence["ScheduledRunStatus"]) -> None:
    """Print a table of scheduled runs."""
    console = Console()
    if not scheduled_runs:
        console.print(Text(f"{corpus}: no scheduled run yet: memagent digest {corpus} --questions FILE"))
        return
    grid = Table(box=None, header_style="dim", pad_edge=False)  # narrow: 80 columns hold it
    for name in ("date", "state", "run"):
        grid.add_column(name, no_wrap=name != "state")
    for name in ("asked", "failed", "left"):
        grid.add_column(name, no_wrap=True, justify="right")
    for scheduled in scheduled_runs:
        counted: list[int] = [scheduled["readings"], scheduled["failed"], scheduled["unread"]]
        # What was asked is counted when a digest ends; what failed is known before.
        counts = [number(count) if count or scheduled["readings"] else "" for count in counted]
        state = f"late, {scheduled['state']}" if scheduled["late"] else scheduled["state"]
        grid.add_row(scheduled["date"], state, scheduled["run_id"], *counts)
    console.print(grid)


_SHOWN = 50
"""Rows on the terminal; --json has them all."""


@takes("json")
def cost(
    given: Common,
    corpus: Annotated[str | None, typer.Argument(help="Name of the corpus; default: all.")] = None,
    by: Annotated[str, typer.Option("--by", help="Group by run, question, policy or corpus.")] = "run",
    since: Annotated[
        str | None, typer.Option("--since", help="Count runs since this day (UTC), such as 2026-11-24.")
    ] = None,
) -> None:
    """Show tokens, engine time and money spent on reading."""
    from pipelines.operate.cost import cost as run_cost

    first = None if since is None else datetime.combine(day(since, "--since"), datetime.min.time(), UTC)
    table = run_cost(given.settings, corpus, by, first)  # type: ignore[arg-type]
    out(table) if given.json else _show_costs(table)


def day(text: str, option: str) -> date:
    """Return a day as people write it. Raises UsageError: it is none."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: write a day as 2026-11-24") from error


def _show_costs(table: "CostTable") -> None:

    grid = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    is_run = table["by"] == "run"  # to be copied, whatever the terminal's width
    grid.add_column(table["by"], overflow="fold", no_wrap=is_run, min_width=RUN_ID_CHARS if is_run else None)
    for name in ("runs", "tokens\nread", "from\ncache", "written", "engine\ntime", table["currency"] or ""):
        grid.add_column(name, no_wrap=True, justify="right")
    for row in [*table["rows"][:_SHOWN], table["total"]]:
        tokens = [number(row[name]) for name in ("prompt_tokens", "cached_tokens", "output_tokens")]
        money = "" if row["money"] is None else f"{row['money']:,.2f}"
        cells = [plain(row["name"]), number(row["runs"]), *tokens, duration(row["engine_seconds"]), money]
        grid.add_row(*map(Text, cells), style="bold" if row is table["total"] else "")
    console = Console()
    console.print(grid)
    if len(table["rows"]) > _SHOWN:
        Console(stderr=True).print(f"the first {_SHOWN} of {len(table['rows']):,}; --json has them all")


app = typer.Typer(help="List and stop engines that stay loaded between commands.", add_completion=False)


@app.command("list")
def list_engines(json_: JsonOption = False) -> None:
    """List your loaded engines on this machine."""
    from infra.engines.warm import running

    _show_engines("", running(), json_)


@app.command()
def stop(json_: JsonOption = False) -> None:
    """Stop your loaded engines."""
    from infra.engines.warm import stop_all

    _show_engines("stopped ", stop_all(), json_)


def _show_engines(verb: str, engines: "Sequence[WarmEngineInfo]", json_: bool) -> None:
    if json_:
        out({"engines": [asdict(engine) for engine in engines]})
        return
    for engine in engines:
        typer.echo(f"{verb}{engine}")
    if not engines:
        typer.echo("no engine is loaded")
