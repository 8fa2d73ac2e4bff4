"""Two commands at once on one corpus: each ends as it is meant to, and the store is whole.

`MEMAGENT_EVERY_PAIR=1` (in `make endurance`) runs all pairs, not only those that write the same tables.
"""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.delta import Table
from infra.store.location import Store
from tests.endurance import QUESTIONS, make_archive

COMMANDS = {
    "ask": ["ask", "archive", "-q", QUESTIONS[1], "--no-answers"],
    "digest": ["digest", "archive", "--no-answers"],
    "ingest": ["ingest", "archive", "{folder}"],
    "optimize": ["optimize", "archive"],
    "check": ["check", "archive"],
    "forget": ["forget", "archive", "--where", "document=doc003.txt"],
    "harvest": ["harvest", "archive", "--agreement", "2"],
}
PAIRS = [
    *(("digest", other) for other in ("digest", "ask", "ingest", "optimize", "forget", "harvest")),
    *(("forget", other) for other in ("ask", "optimize")),
    ("ask", "check"),
]
if os.environ.get("MEMAGENT_EVERY_PAIR"):
    PAIRS = list(itertools.combinations_with_replacement(COMMANDS, 2))
_DOCUMENTS = 12
_READS = ("ask", "digest")


def command(name: str, folder: Path) -> list[str]:
    engine = ["--engine", "scripted"] if name in (*_READS, "harvest") else []
    rest = [part.format(folder=folder / "docs") for part in COMMANDS[name]]
    return [sys.executable, "-m", "memagent", *rest, *engine, "--store", str(folder / "store")]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that was digested once, and whose folder has changed since."""
    folder = tmp_path_factory.mktemp("pairs")
    make_archive(folder / "docs", _DOCUMENTS, 20)
    (folder / "standing.csv").write_text(f"question\n{QUESTIONS[0]}\n")
    for argv in (command("ingest", folder), [*command("digest", folder), "--questions", str(folder / "standing.csv")]):
        subprocess.run(argv, check=True, capture_output=True)
    (folder / "docs" / "doc001.txt").write_text("The pass number for amber-otter is 1234567.")
    (folder / "docs" / "new.txt").write_text("The pass number for silver-heron is 7654321.")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_at_once(prepared: Path, tmp_path: Path, pair: tuple[str, str]) -> None:
    # Sources are known by their paths, so the folder of each trial is where it was.
    store = tmp_path / "store"
    shutil.copytree(prepared / "store", store)
    argv = [[*command(name, prepared)[:-1], str(store)] for name in pair]
    running = [
        subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        for one in argv
    ]
    for name, process in zip(pair, running, strict=True):
        said, errors = process.communicate()
        assert process.returncode == 0, f"{name}: {said[-500:]}{errors[-2000:]}"
        assert "Traceback" not in errors, errors[-3000:]

    # What one of them left to the other is made up for by the next night.
    again = subprocess.run([*command("digest", prepared)[:-1], str(store)], capture_output=True, text=True)
    assert again.returncode == 0 and "Traceback" not in again.stderr, again.stderr[-3000:]
    whole = subprocess.run([*command("check", prepared)[:-1], str(store)], capture_output=True, text=True)
    assert whole.returncode == 0 and "0 damaged" in whole.stdout, whole.stdout + whole.stderr
    rows = Table(Store(str(store)), "answers").read("archive", ["reading_id", "content_hash"]).to_pylist()
    assert len(rows) == len({row["reading_id"] for row in rows}), "something was answered twice"
    assert len({row["content_hash"] for row in rows}) >= _DOCUMENTS
