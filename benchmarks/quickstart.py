"""A newcomer's first minutes: set-up from nothing, the demo alone and beside other work, the engine's pace by format.

    python -m benchmarks.quickstart [--parts setup,ask,demo,load,pace] [--documents 20] [--label "avx2, two cores"]

`setup` clones the committed state into an empty folder and runs ``make setup`` there, with empty caches of pip and uv,
twice. `ask` asks of a note twice: the first call starts the engine, which waits for the second. `demo` and `load` run
``make demo`` in that clone from the start, alone and beside two processes that do nothing but count; without `setup`
they run in this working tree. `pace` reads the same documents in each number format. Parts that are left out keep the
numbers that they had on such a machine.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ceiling import ends, make_archive, pass_rate, read_all
from benchmarks.record import ROOT, Row, arguments, result, write
from examples.demo import DOCUMENTS
from infra.store.location import Store
from memagent.config import load_config

PARTS = ("setup", "ask", "demo", "load", "pace")
FORMATS = ("auto", "float32", "bfloat16")


def timed(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Run a command and return its seconds; its output goes to standard error.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    began = time.monotonic()
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, stdout=sys.stderr, check=True)
    return round(time.monotonic() - began, 2)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` busy loops while the body runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def setup(clone: Path, caches: dict[str, str]) -> list[Row]:
    """Set up an empty clone, twice."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    first, second = (timed(["make", "setup"], clone, caches) for _ in range(2))
    return [
        Row("set-up, first call", first, "s", n=1, note="an empty clone, empty caches"),
        Row("set-up, second call", second, "s", n=1),
    ]


def ask(folder: Path, work: Path) -> list[Row]:
    """Ask of a note, without an engine that waits and then with one."""
    (work / "notes").mkdir()
    (work / "notes" / "note.md").write_text("The pass number for amber-otter is: 4829104. Keep it safe.")
    memagent = str(folder / ".venv" / "bin" / "memagent")
    words = [memagent, "ask", str(work / "notes")]
    questions = ("What is the pass number for amber-otter?", "What is the pass number for silver-heron?")
    local = {"MEMAGENT_STORE": str(work / "store"), "MEMAGENT_RUNTIME": str(work / "run")}
    try:
        first, second = (timed([*words, question], folder, local) for question in questions)
    finally:
        timed([memagent, "engine", "stop"], folder, local)
    return [
        Row("first question, with the engine's start", first, "s", n=1, note="a folder with one note"),
        Row("second question", second, "s", n=1, note="the engine that waits answers"),
    ]


def demo(folder: Path, name: str, loops: int) -> Row:
    """Run the demo from the start beside so many busy loops."""
    shutil.rmtree(folder / "build" / "demo", ignore_errors=True)
    with busy(loops):
        return Row(name, timed(["make", "demo"], folder, {}), "s", n=1, note=f"{DOCUMENTS} documents")


def pace(work: Path, documents: int) -> list[Row]:
    """Read the same documents by the bundled reader in each number format: the memory pass's conversations a second."""
    make_archive(work / "docs", documents, 16)
    rows = []
    for dtype in FORMATS:
        config = load_config(sets=[f"engine.dtype={dtype}"], store=str(work / dtype))
        turns = ends(Store(config.store), read_all(config, work / "docs"))
        name = "engine, the processor's format" if dtype == "auto" else f"engine, {dtype}"
        rows.append(Row(name, round(pass_rate(turns)[0], 1), "conversations a second", n=len(turns)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--documents", type=int, default=20, help="that the engine's pace is measured on")
    arguments(parser)
    given = parser.parse_args()
    parts = given.parts.split(",")
    if wrong := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        work, folder = Path(name), ROOT
        if "setup" in parts:
            folder = work / "clone"
            caches = {"UV_CACHE_DIR": str(work / "uv"), "PIP_CACHE_DIR": str(work / "pip")}
            rows += setup(folder, caches)
        if "ask" in parts:
            rows += ask(folder, work)
        if "demo" in parts:
            rows.append(demo(folder, "demo after set-up", 0))
        if "load" in parts:
            rows.append(demo(folder, "demo beside two busy loops", 2))
        if "pace" in parts:
            rows += pace(work, given.documents)
    for row in rows:
        print(f"{row.name:32} {row.value} {row.unit}", flush=True)
    write(result("quickstart", "First minutes", rows, given), keep=True)


if __name__ == "__main__":
    main()
