"""Scores on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.cli.live import summary as run_summary
from pipelines.formatting import plain


def evaluation_summary(console: Console, said: Mapping[str, Any]) -> None:
    """Print what an evaluation came to: the run, its scores, and the comparison, where one was asked for."""
    run_summary(console, {**said, "scores": None})
    console.print()
    console.print(score_lines(said["evaluation"], "Scores"))
    if "paired" in said:
        console.print(Text(_compared(said["paired"], said["against"]["policy_id"])))
    run_id = said["run_id"]
    console.print(Text(f"report: memagent scores --run {run_id} -o report.html; readings: memagent report {run_id}"))


def scores_table(run: Mapping[str, Any]) -> Table:
    """Return the table of one evaluation (a row of `pipelines.scores.by_run`)."""
    parts = [run["run_id"], run["suite"], run["policy_id"], run["method"]]
    if run["control"]:
        parts.append(f"control {run['control']}")
    return score_lines(run["lines"], "  ".join(plain(part) for part in parts))


def score_lines(lines: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return score lines (task, length, metric, value, low, high, n, failed) as a table."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, header_style="dim", padding=(0, 1))
    for name in ("task", "length", "measure", "value", "95% interval", "n", "failed"):
        if name in ("task", "measure"):  # a name that is cut short could be several
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(
            Text(plain(line["task"])),
            f"{line['length']:,}" if line["length"] else "as it is",
            Text(plain(line["metric"])),
            f"{line['value']:.1%}",
            f"{line['low']:.1%} to {line['high']:.1%}",
            f"{line['n']:,}",
            Text(f"{line['failed']:,}", style="bold red" if line["failed"] else ""),
        )
    return table


def _compared(paired: Mapping[str, Any], other: str) -> str:
    return (
        f"against {plain(other)}: {paired['difference']:+.1%} ({paired['low']:+.1%} to {paired['high']:+.1%}), "
        f"p = {paired['p']:.3g} by a sign-flip permutation test ({paired['method']}), "
        f"n = {paired['n']}, better on {paired['better']}, worse on {paired['worse']}"
    )
