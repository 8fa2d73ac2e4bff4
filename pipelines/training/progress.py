"""Terminal output of a training run: progress and summary."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from pipelines.formatting import duration, number, percent

_STAGES = {
    "start": "starting the engines and the learner",
    "rollout": "reading",
    "learn": "learning",
    "validate": "validating",
    "step": "done",
}


class TrainingProgress:
    """Progress on standard error, as a context manager: a bar on a terminal, and a line for each step."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bars.add_task("training", total=None)

    def __enter__(self) -> "TrainingProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, event: Mapping[str, Any]) -> None:
        """Show an event of the training loop."""
        if "groups" in event and "stage" not in event:
            text = (
                f"reading: {event['groups']} of {event['groups_total']} groups with signal, {event['sampled']} sampled"
            )
            self._bars.update(self._task, description=text)
            return
        text = _STAGES.get(str(event["stage"]), str(event["stage"]))
        self._bars.update(self._task, description=text, total=event.get("steps"), completed=event.get("step"))
        if event["stage"] == "step":
            self._console.print(line(event["row"]), highlight=False, soft_wrap=True)


def line(row: Mapping[str, Any]) -> str:
    """Return the metrics of a step as one line."""
    text = f"step {row['step']:4}  reward {row['reward']:.3f}  strict {row['strict']:.3f}  lenient {row['lenient']:.3f}"
    kept = percent(row["groups"], row["sampled_groups"])
    text += f"  kept {kept}  logprob diff {row['logprob_diff']:.4f}  entropy {row['entropy']:.3f}"
    text += f"  norm {row['gradient_norm']:.2f}  {duration(sum(row['seconds'].values()))}"
    if "validation" in row:
        scores = row["validation"]
        text += f"  validation {scores['reward']:.3f} strict {scores['strict']:.3f} (n={scores['n']})"
    return text


def show_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a run's summary."""
    table = Table(title=f"Training {summary['run_id']}", show_header=False)
    before, best = summary["validation"]["before"], summary["validation"]["best"]
    rows = [
        ("began with", summary["parent"]),
        ("ended after", summary["ended"]),
        ("validation before", f"{before['reward']:.3f} (n={before['n']})" if before else "none"),
        ("validation at its best", f"{best['reward']:.3f}, step {summary['best_step']}" if best else "none"),
        ("rollouts", number(int(summary.get("trajectories", 0)))),
        (
            "tokens sampled / trained",
            " / ".join(number(int(summary.get(f"{k}_tokens", 0))) for k in ("rollout", "trained")),
        ),
        ("time", duration(summary.get("seconds", 0.0))),
        ("candidate", summary["candidate"] or "none: nothing was better than what training began with"),
    ]
    if summary.get("rows_gone"):
        rows.append(("rows left out", f"{number(int(summary['rows_gone']))}: their documents are gone"))
    for name, value in rows:
        table.add_row(name, str(value))
    (console or Console()).print(table)
    if summary["candidate"]:
        (console or Console()).print(f"Promote it: memagent policies promote {summary['candidate']}")
