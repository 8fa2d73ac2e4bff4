"""Terminal output of a run: live progress, summary, and answers as a table.

Text of documents and models is printed without markup and control characters. Progress goes to standard error, so that
standard output stays clean for JSON.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from memagent.records import ProgressCounts
from pipelines.views.formatting import (
    cited,
    cost_of,
    counts_of,
    duration,
    failures,
    number,
    one_line,
    pace,
    percent,
    plain,
    shown_as,
    work_of,
)

if TYPE_CHECKING:
    from pipelines.io.answers import GivenAnswer

_WINDOW = 30.0
"""Seconds over which speeds are averaged."""
_STEADY = 1.5
"""Ratio of the speeds of two halves up to which one is taken for the other."""
_SETTLED = 5.0
"""Seconds of progress before the time left is estimated."""
_LINE_EVERY = 10.0
"""Seconds between lines without a terminal."""


class Display:
    """Progress of a run, as a context manager.

    `update` takes the keys of ``progress.jsonl``, ``stage`` and ``engine``, or from an ingest ``done`` and ``total``
    sources; missing keys are not shown. A terminal has a panel that is redrawn, other streams a line every ten seconds.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        """What is printed to it meanwhile stands above the panel."""
        self._began = time.monotonic()
        self._snapshot: ProgressCounts = {}
        self._samples: deque[dict[str, float]] = deque()
        self._moved = self._began
        self._line_at = -_LINE_EVERY
        self._line_stage = ""
        self._live: Live | None = None

    def __enter__(self) -> "Display":
        self._began = self._moved = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, snapshot: ProgressCounts) -> None:
        """Take the newest counts."""
        now = time.monotonic()
        if snapshot.get("stage") != self._snapshot.get("stage") or work_of(snapshot)[1] < work_of(self._snapshot)[1]:
            self._samples.clear()  # each stage counts from zero
        if not self._samples or work_of(snapshot)[1] > work_of(self._snapshot)[1]:
            self._moved = now
        self._snapshot = snapshot
        tokens = _count(snapshot, "prompt_tokens") + _count(snapshot, "output_tokens")
        t = float(snapshot.get("t", now - self._began))
        self._samples.append({"t": t, "work": work_of(snapshot)[1], "tokens": tokens})
        while len(self._samples) > 2 and self._samples[1]["t"] <= self._samples[-1]["t"] - _WINDOW:
            self._samples.popleft()
        if not self.console.is_terminal:
            self._line(now)

    def speed(self, key: str) -> float:
        """Return the increase per second of ``work`` (segments; sources in an ingest) or ``tokens``, over 30 s."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = last["t"] - first["t"]
        return max(0.0, last[key] - first[key]) / seconds if seconds > 0 else 0.0

    def time_left(self) -> str:
        """Return the estimated time left, or why there is no estimate."""
        unit, done, total = work_of(self._snapshot)
        if self._snapshot.get("stage") == "done":
            return "nothing"
        if total and done >= total:
            return "finishing"
        if not done:
            return "starting the engine" if self._snapshot.get("engine") else "starting"
        idle = time.monotonic() - self._moved
        if idle > _WINDOW:
            return f"unknown: no {shown_as(f'{unit}s')} for {duration(idle)}"
        rate = self.speed("work")
        if not total or not rate or not self._is_steady():
            return "measuring"
        return "about " + duration((total - done) / rate)

    def _is_steady(self) -> bool:
        """Whether an estimate can be made: both halves of the last seconds have about the same speed.

        Engines that warm up, and readings that move on together, come in bursts.
        """
        first, last = self._samples[0], self._samples[-1]
        span = last["t"] - first["t"]
        if span < _SETTLED:
            return False
        middle = min(self._samples, key=lambda sample: abs(sample["t"] - first["t"] - span / 2))
        pairs = ((first, middle), (middle, last))
        slow, fast = sorted((b["work"] - a["work"]) / max(b["t"] - a["t"], 1e-9) for a, b in pairs)
        return fast <= _STEADY * slow

    def render(self) -> RenderableType:
        """Return the current panel."""
        snapshot = self._snapshot
        _, done, total = work_of(snapshot)
        title = Text(shown_as(snapshot.get("stage") or "starting"), style="bold")
        if snapshot.get("stage") == "wait":
            title.append(f" for run {plain(snapshot.get('run') or '')}", style="dim")
        if snapshot.get("engine"):
            title.append(f"  {plain(snapshot['engine'])}", style="dim")
        fields = self._fields()
        grid = Table.grid(padding=(0, 3))
        for start in range(0, len(fields), 4):
            grid.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in fields[start : start + 4]))
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = Text(self.time_left(), style="cyan")
        bar.add_row(ProgressBar(total=max(1, total), completed=done, pulse=not done), left)
        return Panel(Group(grid, bar), title=title, title_align="left", border_style="dim", padding=(0, 1))

    def _fields(self) -> list[tuple[str, str | Text]]:
        snapshot = self._snapshot
        unit, done, _ = work_of(snapshot)
        failures = _count(snapshot, "failures") + _count(snapshot, "quarantined")
        fields: list[tuple[str, str | Text]] = [*counts_of(snapshot)]
        if failures or done:
            fields.append(("failures", Text(number(failures), style="bold red" if failures else "")))
        if done:
            fields.append((f"{shown_as(f'{unit}s')}/s", f"{self.speed('work'):,.1f}"))
        if "prompt_tokens" in snapshot:
            fields += [
                ("tokens/s", number(self.speed("tokens"))),
                ("from cache", percent(_count(snapshot, "cached_tokens"), _count(snapshot, "prompt_tokens"))),
            ]
        elapsed = max(float(snapshot.get("t") or 0), time.monotonic() - self._began)
        return [*fields, ("elapsed", duration(elapsed))]

    def _line(self, now: float) -> None:
        stage = shown_as(self._snapshot.get("stage") or "")
        if now - self._line_at < _LINE_EVERY and stage == self._line_stage:
            return
        self._line_at, self._line_stage = now, stage
        parts = [f"{name} {value}" for name, value in self._fields()]
        if any(work_of(self._snapshot)[1:]):
            parts.append(f"left {self.time_left()}")
        self.console.print(Text(f"{stage or 'run'}: {', '.join(parts)}"), soft_wrap=True)


def summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the summary of a run: counts, scores with n and interval, failures by reason.

    A summary of another shape (an ingest, a dry run) is printed key by key.
    """
    counts = summary.get("readings")
    if not isinstance(counts, Mapping):
        _print_keys(console, summary)
        return
    total = counts.get("total", 0)
    seconds, outside = summary.get("seconds") or 0.0, summary.get("outside_scope") or ()
    prompt, cached, output = (summary.get(key) or 0 for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
    answered = total - counts.get("unread", 0)
    unmatched = failures(summary).get("no-document", 0)  # questions, and not ones on a document
    shared = _shared(counts, unmatched)
    rows: list[tuple[str, str]] = [
        ("sources", _sources(summary)),
        ("documents", _documents(summary)),
        (
            "asked",
            f"{number(total)}: {number(counts.get('read_now', 0))} read now, "
            f"{number(counts.get('answered_before', 0))} answered before, "
            f"{number(counts.get('failed', 0) - unmatched)} failed"
            + (f", {number(shared)} on the text of another document" if shared else "")
            + (f", {number(counts['unread'])} left: the budget is spent" if counts.get("unread") else ""),
        ),
        (
            "answer found",
            f"{number(counts.get('found', 0))} of {number(answered)} ({percent(counts.get('found', 0), answered)})",
        ),
        ("outside training", f"questions: {number(len(outside))}; their answers are mostly wrong" if outside else ""),
        ("parts read", number(summary.get("segments") or 0) + (f" ({pace(summary)})" if pace(summary) else "")),
        ("tokens", f"{number(prompt)} read ({percent(cached, prompt)} from cache), {number(output)} written"),
        ("time", duration(seconds)),
        ("cost", cost_of(summary)),
        ("model", plain(summary.get("policy_id") or summary.get("policy") or "")),
        ("model changed", plain(summary.get("model_changed") or "")),
        ("engine", plain(summary.get("engine") or "")),
        ("run", plain(summary.get("run_id") or "")),
    ]
    console.print(pairs(rows))
    for title, part in (("Scores", _scores(summary)), ("Failures", _failures(summary))):
        if part is not None:
            console.print()
            console.print(Text(title, style="bold"))
            console.print(part)
    if failures(summary) and summary.get("corpus"):
        console.print(Text(f"which, and why: memagent quarantine {plain(summary['corpus'])}", style="dim"))


_NARROWEST = 28
"""Characters of the narrowest column in which an answer and its quote can be read."""
_SHOWN = 1_000
"""Most rows of a table on the terminal."""


def print_answers(rows: Iterable["GivenAnswer"]) -> None:
    """Print a table of answers; of very many the first ones."""
    remaining = iter(rows)
    answers_table(Console(), list(islice(remaining, _SHOWN)))
    if next(remaining, None) is not None:
        Console(stderr=True).print(f"only the first {_SHOWN:,} are shown: see --limit, --where and --format")


def answers_table(console: Console, rows: Sequence["GivenAnswer"]) -> None:
    """Print answers by document and question; of more questions than have room side by side, one below the other."""
    if not rows:
        console.print(Text("no answers"))
        return
    by_document: dict[str, dict[str, list[Text]]] = {}
    for row in rows:
        document, question, *said = answer_cells(row).values()
        lines = by_document.setdefault(document.plain, {}).setdefault(question.plain, [])
        lines += [line for line in said if line]
    questions = list(dict.fromkeys(question for asked in by_document.values() for question in asked))
    table = Table(show_lines=True, expand=True, header_style="bold", border_style="dim")
    if _NARROWEST * (1 + len(questions)) <= console.width:
        for title in ("document", *questions):
            table.add_column(Text(title), ratio=1, overflow="fold")
        for name, asked in by_document.items():
            table.add_row(Text(name), *(Text("\n").join(asked.get(question, [])) for question in questions))
    else:
        table.add_column("document, question", ratio=2, overflow="fold")
        table.add_column("answer, evidence", ratio=3, overflow="fold")
        for name, asked in by_document.items():
            table.add_row(Text(name, style="bold"), "")
            for title, lines in asked.items():
                table.add_row(Text(title), Text("\n").join(lines))
    console.print(table)


def answer_cells(row: "GivenAnswer") -> dict[str, Text]:
    """Return an answer's document, question, answer, evidence (its first quote) and warnings, a line each."""
    place = next((place for place in row["evidence"] if place["quote"]), None) or next(iter(row["evidence"]), None)
    review = " by ".join(filter(None, [row["review"], ", ".join(row["reviewed_by"])]))
    where = "" if row["document"] or place is None else place["document"]
    quote = cited(place["quote"], place["page"], verbatim=place["verbatim"], document=where) if place else ""
    found = Text(one_line(row["answer"]), style="bold") if row["found"] else Text("not found", style="dim italic")
    return {
        "document": Text(one_line(row["document"] or row["title"])),
        "question": Text(one_line(row["question"]), style="dim"),
        "answer": found,
        "evidence": Text(quote, style="dim"),
        "warning": Text(one_line("; ".join(filter(None, [review, *row["warnings"]]))), style="yellow"),
    }


def _print_keys(console: Console, summary: Mapping[str, Any]) -> None:
    rows = []
    for key, value in summary.items():
        key = shown_as(key) if summary.get("dry_run") else key
        if isinstance(value, Mapping):
            value = ", ".join(f"{inner} {count}" for inner, count in value.items())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = ", ".join(str(item) for item in value)
        if key.endswith("seconds") and isinstance(value, int | float):
            key, value = key.removesuffix("_seconds").replace("seconds", "time"), duration(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = number(value)
        rows.append((plain(key).replace("_", " "), "" if value is None else plain(value)))
    console.print(pairs(rows))


def pairs(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and values side by side, as they stand; what is empty is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(Text(name), Text(value) if isinstance(value, str) else value)
    return table


def _shared(counts: Mapping[str, int], unmatched: int) -> int:
    """Return how many questions on documents are answered by a reading of the same text."""
    kinds = ("read_now", "answered_before", "failed", "unread")
    return max(0, counts.get("total", 0) + unmatched - sum(counts.get(kind, 0) for kind in kinds))


def _sources(summary: Mapping[str, Any]) -> str:
    ingest = summary.get("ingest")
    if not isinstance(ingest, Mapping):
        return ""
    kinds = ("new", "changed", "unchanged", *(kind for kind in ("deleted", "excluded") if ingest.get(kind)), "failed")
    return f"{number(ingest['sources'])}: " + ", ".join(f"{number(ingest[kind])} {kind}" for kind in kinds)


def _documents(summary: Mapping[str, Any]) -> str:
    warned = (summary.get("ingest") or {}).get("with_warnings")
    return number(summary.get("documents") or 0) + (f", {number(warned)} new ones with warnings" if warned else "")


def _scores(summary: Mapping[str, Any]) -> Table | None:
    if not summary.get("scores"):
        return None
    table = Table(box=None, header_style="dim", padding=(0, 2), pad_edge=False)
    for name in ("metric", "value", "95% interval", "n"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for score in summary["scores"]:
        low, high = score.get("low"), score.get("high")
        interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        table.add_row(Text(plain(score["metric"])), f"{score['value']:.3f}", interval, f"{score.get('n', 0):,}")
    return table


def _failures(summary: Mapping[str, Any]) -> Table | None:
    reasons = failures(summary)
    if not reasons:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="red")
    table.add_column()
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{count:,}", Text(plain(reason)))
    return table


def _count(snapshot: Mapping[str, Any], key: str) -> float:
    return float(snapshot.get(key) or 0)
