"""The examples of the documentation run as they stand, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import HERE, ROOT, blocks

EXAMPLES = blocks(ROOT / "docs" / "python.md", "python")
QUERIES = blocks(ROOT / "docs" / "scale.md", "python")
NOTE = "The gate was painted on Monday. The access code of cedar-gate is 4471902. Lunch is at noon.\n"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda code: code.strip().splitlines()[-1][:40])
def test_an_example_runs(example, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "monday.md").write_text(NOTE)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, env=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    if "print(" in example:
        assert "4471902" in done.stdout


def test_the_example_of_the_readme_runs_as_it_stands(tmp_path: Path):
    (example,) = blocks(ROOT / "README.md", "python")
    assert len(example.splitlines()) <= 6
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "monday.md").write_text(NOTE)
    scripted = {**HERE, "MEMAGENT_CONFIG": '{"engine": {"kind": "scripted"}}'}
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=scripted, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("monday.md 4471902 ") and "The access code of cedar-gate is 4471902." in done.stdout


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_tables_runs(query, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "monday.md").write_text(NOTE)
    for number, code in enumerate((EXAMPLES[-1], query)):
        (tmp_path / f"{number}.py").write_text(code)
        done = subprocess.run([sys.executable, f"{number}.py"], cwd=tmp_path, env=HERE, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "1 4471902 | What is the access code of cedar-gate?" in done.stdout
