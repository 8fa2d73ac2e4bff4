"""Write docs/results.md from the records in docs/results/.

python -m benchmarks.page
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from benchmarks.record import FOLDER, ROOT, Result, Row, load

PAGE = ROOT / "docs" / "results.md"
HEADLINES = (
    ("set-up of an empty clone", "quickstart", "set-up, first call"),
    ("demo after set-up", "quickstart", "demo after set-up"),
    ("demo beside two busy loops", "quickstart", "demo beside two busy loops"),
    ("segments a second of the bundled reader", "quickstart", "engine, the processor's format"),
    ("demo: exact match", "quickstart", "demo, own questions: exact match"),
    ("needles at 8K tokens, RULER's eight kinds", "needles", "all, 8K tokens"),
    ("needles at 3.5M tokens, one value of one key", "needles", "one value of one key, 3.5M tokens"),
    ("governing law of contracts never seen", "contracts-held-out", "governing law"),
    ("bulk reading's share of the engine's own pace", "ceiling", "share of the engine's own pace, the middle pass"),
    ("time a segment, 10 segments against 1,000", "linear", "time a segment, of 10 segments against of 1,000"),
    ("peak memory of a worker, 4.5M tokens", "memory", "worker, scripted reader, 4.5M tokens"),
    ("conversations again after each document grew", "growth", "conversations done again"),
)
"""Rows of the first table: label, record and row name. Rows without a record are left out."""
_MOST = 10
SECTIONS = {
    "Start": ("quickstart", "engine-start", "suite"),
    "Cost": ("contracts-cost", "ceiling", "engine-steps", "linear", "memory", "growth", "long-cost", "pipeline"),
    "The desk": ("desk", "confidence"),
    "Many documents": (
        "scale",
        "scale-s3",
        "scale-kills",
        "status",
        "status-s3",
        "plan",
        "cluster",
        "driver",
        "ray-data",
        "turn-log",
    ),
    "Kill and run again": ("kills", "faults", "soak"),
    "Contracts": ("contracts-held-out", "contracts-all", "entities", "entities-controls"),
    "Needles": ("needles", "needles-first-version", "needles-sft", "ruler", "controls", "methods", "hotpot"),
    "Making samples": ("generation",),
    "The bundled reader": ("nano-trial", "nano-training", "nano-again"),
    "Training": (
        "training-right",
        "learner",
        "sharing",
        "training-step",
        "training-stage",
        "training-gains",
        "longer",
        "training-methods",
    ),
    "Promotion": ("promotion", "contract_loop", "desk_loop"),
}
"""Records by section, in order; others come last under "Others"."""
_INTRODUCTION = """# Measured

Made by `python -m benchmarks.page` from the records in [docs/results/](results/), one a benchmark and class of machine;
a benchmark writes its own. Each record has its command and commit: a change of the code does not oblige to measure all
again. Intervals are 95% (Wilson; of differences, paired). On two shared cores times vary by a factor of two with what
else runs; ratios come from one run each, unless a note says more. † was measured with earlier weights of the bundled
reader, and not again. "Noted by hand" is what was carried over from a page that people kept: its commit is the one that
noted it.
"""


def render(results: Sequence[Result]) -> str:
    """Return the page."""
    parts = [_INTRODUCTION, _headlines(results)]
    names = {record.benchmark for record in results}
    listed = {name for group in SECTIONS.values() for name in group}
    sections = {**SECTIONS, "Others": tuple(sorted(names - listed))}
    for title, group in sections.items():
        records = [record for name in group for record in results if record.benchmark == name]
        if records:
            parts.append(f"## {title}\n")
            parts += [_record(record, title) for record in records]
    return "\n".join(parts)


def cell(row: Row) -> str:
    """Format a row's value with unit, interval and mark."""
    text = f"{row.value:,}" if isinstance(row.value, int) else str(row.value)
    if isinstance(row.value, float) and abs(row.value) >= 1000:
        text = f"{row.value:,}"
    text += row.unit if row.unit == "%" else f" {row.unit}".rstrip()
    if row.interval is not None:
        text += " [{}, {}]".format(*(f"{bound:g}" for bound in row.interval))
    return text + (" †" if row.earlier else "")


def _headlines(results: Sequence[Result]) -> str:
    headlined = {record for _, record, _ in HEADLINES}
    machines = sorted({one.machine.label for one in results if one.benchmark in headlined})
    lines = []
    for what, benchmark, name in HEADLINES:
        of = [one for one in results if one.benchmark == benchmark and any(row.name == name for row in one.rows)]
        if not of:
            continue
        cells = []
        for label in machines:
            rows = [(one, row) for one in of if one.machine.label == label for row in one.rows if row.name == name]
            shown = "; ".join(f"{row.column}: {cell(row)}" if row.column else cell(row) for _, row in rows)
            cells.append(f"{shown} (`{rows[0][1].commit or rows[0][0].commit}`)" if rows else "")
        lines.append([what, *cells, f"`{of[0].command}`"])
    return _table(["what", *machines, "command"], lines[:_MOST])


def _record(one: Result, section: str) -> str:
    about = one.machine
    where = ", ".join(filter(None, (about.cpu, f"{about.memory_gib} GiB", about.number_format)))
    origin = f"commit `{one.commit}`" if one.commit else "commit not known"
    seed = f", seed {one.seed}" if one.seed is not None else ""
    by_hand = ", noted by hand" if one.by_hand else ""
    parts = [] if one.title == section else [f"### {one.title}\n"]
    parts.append(f"`{one.command}`  \n{about.label} ({where}); {origin} of {one.date}{seed}{by_hand}\n")
    parts += [_rows(list(rows)) for _, rows in groupby(one.rows, key=lambda row: bool(row.column))]
    if one.note:
        parts.append(one.note.rstrip() + "\n")
    return "\n".join(parts)


def _rows(rows: list[Row]) -> str:
    noted = any(row.note or row.commit for row in rows)
    if not rows[0].column:
        counted = any(row.n is not None for row in rows)
        head = ["what", "measured", *(["n"] if counted else []), *(["note"] if noted else [])]
        lines = [
            [
                row.name,
                cell(row),
                *([f"{row.n:,}" if row.n is not None else ""] if counted else []),
                *([_note(row)] if noted else []),
            ]
            for row in rows
        ]
        return _table(head, lines)
    columns = list(dict.fromkeys(row.column for row in rows))
    # A commit stands where all of a column have it, else where all of a line have it.
    by_column = {column: {row.commit for row in rows if row.column == column} for column in columns}
    uniform = all(len(commits) == 1 for commits in by_column.values())
    heads = [column + _of(by_column[column] if uniform else ()) for column in columns]
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        cells = {row.column: row for row in rows if row.name == name}
        line = () if uniform else {row.commit for row in cells.values()}
        lines.append([name + _of(line), *(_counted(cells[column]) if column in cells else "" for column in columns)])
    return _table(["", *heads], lines)


def _of(commits: Collection[str]) -> str:
    return "".join(f" (`{commit}`)" for commit in sorted(commits) if commit)


def _note(row: Row) -> str:
    return "; ".join(filter(None, (row.note, f"`{row.commit}`" if row.commit else "")))


def _counted(row: Row) -> str:
    return cell(row) + (f" ({row.n:,})" if row.n is not None else "") + (f"; {row.note}" if row.note else "")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(_safe(text) for text in row) + " |" for row in rows) + "\n"


def _safe(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def main() -> None:
    PAGE.write_text(render(load(FOLDER)), encoding="utf-8")


if __name__ == "__main__":
    main()
