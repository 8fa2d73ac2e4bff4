"""The command that shows what was spent: cost."""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import ConfigOption, JsonOption, SetOption, StoreOption, configured, out

if TYPE_CHECKING:
    from pipelines.cost import CostTable

_SHOWN = 50
"""Rows on the terminal; --json has them all."""


def cost(
    corpus: Annotated[str | None, typer.Argument(help="Name of the corpus; default: all.")] = None,
    by: Annotated[str, typer.Option("--by", help="Group by run, question, policy or corpus.")] = "run",
    since: Annotated[
        str | None, typer.Option("--since", help="Count runs since this day (UTC), such as 2026-11-24.")
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show tokens, engine time and money spent on reading."""
    from pipelines.cost import cost as run_cost

    first = None if since is None else datetime.combine(day(since, "--since"), datetime.min.time(), UTC)
    table = run_cost(configured(store, config, set_), corpus, by, first)  # type: ignore[arg-type]
    out(table) if json_ else _show(table)


def day(text: str, option: str) -> date:
    """Return a day as people write it. Raises UsageError: it is none."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: write a day as 2026-11-24") from error


def _show(table: "CostTable") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    from pipelines.formatting import RUN_ID_CHARS, duration, number, plain

    grid = Grid(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    is_run = table["by"] == "run"  # to be copied, whatever the terminal's width
    grid.add_column(table["by"], overflow="fold", no_wrap=is_run, min_width=RUN_ID_CHARS if is_run else None)
    for name in ("runs", "tokens read", "from cache", "written", "engine time", table["currency"] or ""):
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
