"""What the tests of the commands share: a command runner and an archive with known answers."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memagent.evaluation.needles import make_needles, plant
from tests.support.browsing import browser, visit  # noqa: F401  (fixtures)
from tests.support.commands import run_here
from tests.support.texts import filler

ROOT = Path(__file__).parents[2]
PROSE = (
    "The committee met in spring and agreed on the plan for the year. Members asked for a clear list of dates. "
    "Costs are shared between the offices. The library keeps a copy of every report. Visitors sign the book at the "
    "desk. The garden is open on weekdays. "
)


SHOW = {"answers", "quarantine", "report", "status"}
"""Commands that start nothing: they run in the test's process. As processes `test_docs.py` has them."""


class Memagent:
    """Runs the command line as a user would."""

    def __init__(self, store: str) -> None:
        self.store = store

    def __call__(self, *argv: str, status: int = 0, **variables: str) -> str:
        if argv[0] in SHOW:
            return self.local(*argv, status=status, **variables)
        command = [sys.executable, "-m", "memagent", *argv]
        environment = {**os.environ, "MEMAGENT_STORE": self.store, **variables}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=ROOT, start_new_session=True
        )
        assert done.returncode == status, f"status {done.returncode}\n{done.stderr[-3000:]}\n{done.stdout[-1000:]}"
        return done.stdout if status != 2 else done.stderr

    def local(self, *argv: str, status: int = 0, **variables: str) -> str:
        """Run a command in this process: one that starts nothing, or is refused."""
        said, errors = run_here(*argv, status=status, **{"MEMAGENT_STORE": self.store, **variables})
        return said if status != 2 else errors

    def json(self, *argv: str, status: int = 0, **variables: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*argv, "--json", status=status, **variables))
        return found


@pytest.fixture(scope="module")
def memagent(tmp_path_factory: pytest.TempPathFactory) -> Memagent:
    return Memagent(str(tmp_path_factory.mktemp("store")))


def needle_archive(folder: Path, documents: int, sentences: int, seed: int = 0) -> Path:
    """Write documents with a needle and another of the same wording each; return the questions file."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    rows = []
    for i in range(documents):
        parts = [s + "." for s in PROSE.split(". ") if s.strip()]
        text = " ".join(rng.choice(parts) for _ in range(rng.randint(6, sentences)))
        needles = make_needles(rng, "number", 2)
        text, _ = plant(text, [one.sentence for one in needles], rng)
        (folder / f"doc{i:02}.txt").write_text(text)
        rows.append(
            {
                "id": f"q{i}",
                "question": needles[0].question,
                "answers": [needles[0].value],
                "documents": [f"doc{i:02}.txt"],
            }
        )
    path = folder.parent / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


__all__ = ["Memagent", "filler", "needle_archive"]
