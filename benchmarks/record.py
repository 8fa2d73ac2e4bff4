"""Results as data: what was measured, by which command, on which machine, of which commit.

A benchmark makes one `Result` and writes it to ``docs/results/<benchmark>-<machine>.json``; `benchmarks.page` makes
``docs/results.md`` of some, and a list of all.

    arguments(parser)                 # --record, --label
    write(result("linear", "Cost by length", rows, given))
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
_FEATURES = {"amx_tile": "amx", "avx512f": "avx512", "avx2": "avx2"}
"""Processor flags, best first, and their names here."""
_NUMBERS = "no one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class Row:
    """One number, or one short finding."""

    name: str
    """What was measured."""
    value: float | int | str
    unit: str = ""
    column: str = ""
    """Rows of one name and different columns make a line of a table."""
    interval: tuple[float, float] | None = None
    """The 95% interval."""
    n: int | None = None
    note: str = ""
    earlier: bool = False
    """Measured with an earlier version of the bundled reader."""
    commit: str = ""
    """Commit of the row if it differs from the record's."""


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement."""

    label: str
    """Its class, as "avx2, two cores": results of one class can be compared."""
    cpu: str
    cores: int
    features: tuple[str, ...]
    """Those of avx2, avx512 and amx that it has."""
    memory_gib: int
    number_format: str = ""
    """Number format of the engine, if one ran."""


@dataclass(frozen=True)
class Result:
    """The result of a benchmark on one machine."""

    benchmark: str
    title: str
    command: str
    commit: str
    """Commit of the code; with a + if files differed."""
    date: str
    machine: Machine
    rows: tuple[Row, ...]
    seed: int | None = None
    note: str = ""
    """What to know to read the rows (Markdown)."""
    by_hand: bool = False
    """Copied from a page that was written by hand; the commit is that of the page."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark has."""
    name = Path(sys.argv[0]).stem
    parser.add_argument("--record", default=None, help=f"name of the record (default {name}); empty: write none")
    parser.add_argument("--label", default=None, help='class of the machine, as "avx2, two cores" (default: found out)')


def result(
    benchmark: str, title: str, rows: list[Row], given: argparse.Namespace, seed: int = 0, number_format: str = ""
) -> Result:
    """Return rows as the result of this process's command, on this machine, of this commit.

    Args:
        benchmark: the module's name; `--record` goes before it.
        title: a headline.
        rows: what was measured.
        given: the command's options (see `arguments`).
        seed: random seed.
        number_format: number format of the engine.
    """
    return Result(
        benchmark=benchmark if given.record is None else given.record,
        title=title,
        command=_command(benchmark),
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
        machine=machine(given.label, number_format),
        rows=tuple(rows),
        seed=seed,
    )


def machine(label: str | None = None, number_format: str = "") -> Machine:
    """Describe this machine; `label` None is derived from its processor."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    names = re.search(r"^model name\s*: (.*)$", info, re.M)
    flags = re.search(r"^flags\s*: (.*)$", info, re.M)
    has = set(flags[1].split()) if flags else set()
    features = tuple(name for flag, name in _FEATURES.items() if flag in has)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spelled = _NUMBERS[cores] if cores < len(_NUMBERS) else str(cores)
    default = f"{features[0] if features else 'no avx2'}, {spelled} core{'s' if cores != 1 else ''}"
    return Machine(
        label=label or default,
        cpu=" ".join(names[1].split()) if names else "",
        cores=cores,
        features=features,
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        number_format=number_format,
    )


def write(result: Result, folder: Path = FOLDER, keep: bool = False) -> Path | None:
    """Write a result, replacing that of the same benchmark and class of machine; without a name, write nothing.

    Args:
        result: what was measured.
        folder: where to.
        keep: keep rows of the earlier record that were not measured now, with their commits.
    """
    if not result.benchmark:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.benchmark}-{_slug(result.machine.label)}.json"
    if keep and path.exists():
        before = loads(path.read_text(encoding="utf-8"))
        measured = {(row.name, row.column) for row in result.rows}
        kept = [row for row in before.rows if (row.name, row.column) not in measured]
        rows = (*result.rows, *(replace(row, commit=row.commit or before.commit) for row in kept))
        result = replace(result, rows=rows)
    aside = path.with_suffix(".part")
    aside.write_text(dumps(result), encoding="utf-8")
    aside.replace(path)
    return path


def dumps(result: Result) -> str:
    """Return a result as JSON: one row per line, without unset fields."""
    data = asdict(result)
    rows = [{key: value for key, value in row.items() if _is_set(value)} for row in data.pop("rows")]
    head = {key: value for key, value in data.items() if _is_set(value)}
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{json.dumps(head, ensure_ascii=False, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ""  # 0 is a value


def loads(text: str) -> Result:
    """Parse a result; an unknown key is a TypeError."""
    data: dict[str, Any] = json.loads(text)
    rows = tuple(Row(**{**row, **_tuples(row, "interval")}) for row in data.pop("rows"))
    about = Machine(**{**data["machine"], **_tuples(data["machine"], "features")})
    return Result(**{**data, "machine": about, "rows": rows})


def load(folder: Path = FOLDER) -> list[Result]:
    """Return all results, by file name."""
    return [loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def _tuples(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {name: tuple(data[name])} if name in data else {}


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _command(benchmark: str) -> str:
    """Return the command line, with paths replaced."""
    words = []
    for word in sys.argv[1:]:
        option, eq, value = word.rpartition("=")
        place = "FOLDER" if os.path.isdir(value) else "FILE"
        words.append(f"{option}{eq}{place}" if os.path.isabs(value) or os.path.exists(value) else word)
    main = getattr(sys.modules["__main__"], "__spec__", None)  # of python -m; a module may make several records
    name = main.name if main is not None and main.name.startswith("benchmarks.") else f"benchmarks.{benchmark}"
    return shlex.join(["python", "-m", name, *words])


def _commit() -> str:
    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
