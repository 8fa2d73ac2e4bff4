"""The examples of the documentation run as they stand, those that start something in a process of their own."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import HERE, ROOT, blocks

EXAMPLES = blocks(ROOT / "docs" / "python.md", "python")
QUERIES = blocks(ROOT / "docs" / "scale.md", "python")
NOTE = "The gate was painted on Monday. The access code of cedar-gate is 4471902. Lunch is at noon.\n"


def folder_with_a_note(folder: Path) -> Path:
    (folder / "notes").mkdir()
    (folder / "notes" / "monday.md").write_text(NOTE)
    return folder


def run(code: str, folder: Path, **variables: str) -> str:
    """Run an example in a folder, in a process of its own; return what it prints."""
    (folder / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env=HERE | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the last example has run, whose tables the queries read, and what it has printed."""
    folder = folder_with_a_note(tmp_path_factory.mktemp("archive"))
    return folder, run(EXAMPLES[-1], folder)


@pytest.mark.parametrize("example", EXAMPLES[:-1], ids=lambda code: code.strip().splitlines()[-1][:40])
def test_an_example_runs(example, tmp_path: Path, monkeypatch, capsys):
    folder_with_a_note(tmp_path)
    if "Archive" in example:  # what starts something is run as its reader would
        said = run(example, tmp_path)
    else:
        (tmp_path / "example.py").write_text(example)
        monkeypatch.chdir(tmp_path)
        runpy.run_path("example.py", run_name="__main__")
        said = capsys.readouterr().out
    assert "4471902" in said or "print(" not in example


def test_the_last_example_runs(archive):
    assert "4471902" in archive[1] and "print(" in EXAMPLES[-1]


def test_the_example_of_the_readme_runs_as_it_stands(tmp_path: Path):
    (example,) = blocks(ROOT / "README.md", "python")
    assert len(example.splitlines()) <= 6
    said = run(example, folder_with_a_note(tmp_path), MEMAGENT_CONFIG='{"engine": {"kind": "scripted"}}')
    assert said.startswith("monday.md 4471902 ") and "The access code of cedar-gate is 4471902." in said


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_tables_runs(query, archive, monkeypatch, capsys):
    folder, _ = archive
    (folder / "query.py").write_text(query)
    monkeypatch.chdir(folder)
    runpy.run_path("query.py", run_name="__main__")
    assert "1 4471902 | What is the access code of cedar-gate?" in capsys.readouterr().out
