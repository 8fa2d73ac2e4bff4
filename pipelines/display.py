"""What a run looks like in a terminal: live progress, the summary at its end, answers as a table.

Text that comes from documents and models is shown as text: no markup is read in it and no control
character reaches the terminal. Everything live goes to standard error, so that standard output
stays clean for JSON.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Mode = Literal["auto", "live", "lines", "quiet"]

_WINDOW = 30.0
"""Seconds over which speeds are taken."""
_SETTLED = 5.0
"""Seconds of progress before a time left is worth saying."""
_LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""
# C0 and C1 controls (escape sequences begin with one), marks that turn the direction of text around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(text: object) -> str:
    """Return `text` without characters that command a terminal or turn text around."""
    return _CONTROL.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4))


def number(value: float) -> str:
    """Write a count so that it can be read at a glance: 950, 12,345, 1.23 M."""
    for unit, size in ((" G", 10**9), (" M", 10**6)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Write a time: 0.8 s, 42 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def percent(part: float, whole: float) -> str:
    """Write a share; of nothing there is none."""
    return f"{100 * part / whole:.0f}%" if whole else "–"


class Display:
    """Progress of a run, as a context manager.

    `update` takes the keys of ``progress.jsonl`` and besides ``stage`` and ``engine``; missing ones
    count as zero. Modes: ``live`` redraws a panel, ``lines`` writes a line now and then, ``quiet``
    writes nothing, ``auto`` is ``live`` on a terminal and ``lines`` elsewhere.
    """

    def __init__(self, mode: Mode = "auto", console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, file=None if console else sys.stderr)
        self.mode: Mode = mode if mode != "auto" else ("live" if self._console.is_terminal else "lines")
        self._began = time.monotonic()
        self._snapshot: dict[str, Any] = {}
        self._samples: deque[dict[str, float]] = deque()
        self._moved = self._began
        self._line_at = -_LINE_EVERY
        self._line_stage = ""
        self._live: Live | None = None

    def __enter__(self) -> "Display":
        self._began = self._moved = time.monotonic()
        if self.mode == "live":
            self._live = Live(
                get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, snapshot: Mapping[str, Any]) -> None:
        """Take the newest counts."""
        now = time.monotonic()
        if snapshot.get("stage") != self._snapshot.get("stage") or _segments(snapshot) < _segments(self._snapshot):
            self._samples.clear()  # another stage counts from zero
        if not self._samples or _segments(snapshot) > _segments(self._snapshot):
            self._moved = now
        self._snapshot = dict(snapshot)
        self._samples.append({"at": float(snapshot.get("t", now - self._began)), **_counts(snapshot)})
        while len(self._samples) > 2 and self._samples[1]["at"] <= self._samples[-1]["at"] - _WINDOW:
            self._samples.popleft()
        if self.mode == "lines":
            self._line(now)

    def speed(self, key: str) -> float:
        """Return how much `key` grows in a second, over the last 30 s."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = last["at"] - first["at"]
        return max(0.0, last[key] - first[key]) / seconds if seconds > 0 else 0.0

    def time_left(self) -> str:
        """Say how long the run will go on, or why that cannot be said."""
        said = self._snapshot
        total, done = said.get("segments_total") or 0, _segments(said)
        if total and done >= total:
            return "finishing"
        if not done:
            return "starting the engine" if said.get("engine") else "starting"
        idle = time.monotonic() - self._moved
        if idle > _WINDOW:
            return f"unknown: no segment for {duration(idle)}"
        span = self._samples[-1]["at"] - self._samples[0]["at"]
        rate = self.speed("segments")
        if not total or span < _SETTLED or not rate:
            return "measuring"
        return "about " + duration((total - done) / rate)

    def render(self) -> RenderableType:
        """Return the panel as it stands now."""
        said = self._snapshot
        total, done = said.get("segments_total") or 0, _segments(said)
        title = Text(plain(said.get("stage") or "starting"), style="bold")
        if said.get("engine"):
            title.append(f"  {plain(said['engine'])}", style="dim")
        grid = Table.grid(padding=(0, 3))
        for _ in range(4):
            grid.add_column(no_wrap=True)
        failures = said.get("failures") or 0
        fields = [
            ("documents", _of(said, "documents")),
            ("readings", _of(said, "readings")),
            ("segments", _of(said, "segments")),
            ("failures", Text(number(failures), style="bold red" if failures else "")),
            ("segments/s", f"{self.speed('segments'):,.1f}"),
            ("tokens/s", number(self.speed("tokens"))),
            ("from cache", percent(said.get("cached_tokens") or 0, said.get("prompt_tokens") or 0)),
            ("elapsed", duration(self._elapsed())),
        ]
        for start in (0, 4):
            grid.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in fields[start : start + 4]))
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = Text(self.time_left(), style="cyan")
        bar.add_row(ProgressBar(total=max(1, total), completed=done, pulse=not done), left)
        return Panel(Group(grid, bar), title=title, title_align="left", border_style="dim", padding=(0, 1))

    def _elapsed(self) -> float:
        return max(float(self._snapshot.get("t") or 0), time.monotonic() - self._began)

    def _line(self, now: float) -> None:
        stage = plain(self._snapshot.get("stage") or "")
        if now - self._line_at < _LINE_EVERY and stage == self._line_stage:
            return
        self._line_at, self._line_stage = now, stage
        said = self._snapshot
        text = (
            f"{stage or 'run'}: {_of(said, 'readings')} readings, {_of(said, 'segments')} segments, "
            f"{self.speed('segments'):,.1f} segments/s, {number(self.speed('tokens'))} tokens/s, "
            f"{percent(said.get('cached_tokens') or 0, said.get('prompt_tokens') or 0)} from cache, "
            f"{said.get('failures') or 0} failures, {duration(self._elapsed())} elapsed, left: {self.time_left()}"
        )
        self._console.print(Text(text), soft_wrap=True)


def summary(console: Console, said: Mapping[str, Any]) -> None:
    """Print what a run came to: counts, scores with n and interval, failures by reason."""
    counts = said.get("readings") or {}
    total = counts.get("total", 0)
    seconds = said.get("seconds") or 0.0
    prompt, cached, output = (said.get(key) or 0 for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows: list[tuple[str, str]] = [
        ("documents", number(said.get("documents") or 0)),
        (
            "readings",
            f"{number(total)}: {number(counts.get('read_now', 0))} read now, "
            f"{number(counts.get('answered_before', 0))} answered before, {number(counts.get('failed', 0))} failed",
        ),
        ("answer found", f"{number(counts.get('found', 0))} of {number(total)} ({percent(counts.get('found', 0), total)})"),
        ("segments", f"{number(said.get('segments') or 0)}" + _rate(said.get("segments") or 0, seconds)),
        ("tokens", f"{number(prompt)} read ({percent(cached, prompt)} from cache), {number(output)} written"),
        ("time", duration(seconds)),
        ("policy", " ".join(filter(None, [plain(said.get("policy") or ""), plain(said.get("policy_id") or "")[:12]]))),
        ("engine", plain(said.get("engine") or "")),
    ]
    for name, value in rows:
        if value:
            table.add_row(name, Text(value))
    console.print(table)
    for title, part in (("Scores", _scores(said)), ("Failures", _failures(said))):
        if part is not None:
            console.print()
            console.print(Text(title, style="bold"))
            console.print(part)


def answers_table(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print answers.

    Each row has ``document``, ``question``, ``answer``, ``found`` and ``evidence`` (a quote, or a list
    of them, or of dicts with ``quote``); what is missing stays empty.
    """
    if not rows:
        console.print(Text("no answers"))
        return
    table = Table(show_lines=True, expand=True, header_style="bold", border_style="dim")
    for name, ratio in (("document", 2), ("question", 3), ("answer", 3), ("evidence", 5)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for row in rows:
        found = row.get("found", bool(row.get("answer")))
        answer = Text(_one_line(row.get("answer") or "")) if found else Text("not found", style="dim italic")
        quote = _one_line(_quote(row.get("evidence")))
        table.add_row(
            Text(_one_line(row.get("document") or "")),
            Text(_one_line(row.get("question") or "")),
            answer,
            Text(f"“{quote}”" if quote else "", style="dim"),
        )
    console.print(table)


def _scores(said: Mapping[str, Any]) -> Table | None:
    if not said.get("scores"):
        return None
    table = Table(box=None, header_style="dim", padding=(0, 2), pad_edge=False)
    for name in ("metric", "value", "95% interval", "n"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for score in said["scores"]:
        low, high = score.get("low"), score.get("high")
        interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        table.add_row(Text(plain(score["metric"])), f"{score['value']:.3f}", interval, f"{score.get('n', 0):,}")
    return table


def _failures(said: Mapping[str, Any]) -> Table | None:
    reasons: Mapping[str, int] = said.get("failures_by_reason") or {}
    if not reasons:
        return None
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="red")
    table.add_column()
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(f"{count:,}", Text(plain(reason)))
    return table


def _quote(evidence: object) -> str:
    if isinstance(evidence, Sequence) and not isinstance(evidence, str):
        evidence = next(iter(evidence), "")
    if isinstance(evidence, Mapping):
        evidence = evidence.get("quote")
    return str(evidence or "")


def _one_line(text: object) -> str:
    return " ".join(plain(text).split())


def _segments(snapshot: Mapping[str, Any]) -> float:
    return float(snapshot.get("segments") or 0)


def _counts(snapshot: Mapping[str, Any]) -> dict[str, float]:
    tokens = float(snapshot.get("prompt_tokens") or 0) + float(snapshot.get("output_tokens") or 0)
    return {"segments": _segments(snapshot), "tokens": tokens}


def _of(snapshot: Mapping[str, Any], key: str) -> str:
    done, total = snapshot.get(key) or 0, snapshot.get(f"{key}_total") or 0
    return f"{number(done)} of {number(total)}" if total else number(done)


def _rate(count: float, seconds: float) -> str:
    return f" ({count / seconds:,.1f} a second)" if count and seconds else ""
