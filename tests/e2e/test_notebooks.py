"""The notebooks of the documentation run from their first cell to their last."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.notebooks import NOTEBOOKS, program
from tests.support.pages import HERE

SCRIPTED = json.dumps({"engine": {"kind": "scripted"}})


def run(name, folder, **environment):
    code = program(NOTEBOOKS / f"{name}.ipynb")
    (folder / "notebook.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=folder,
        env={**os.environ, **HERE, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_no_notebook_is_left_out():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {"contracts", "evaluate", "train"}


def test_contracts(tmp_path):
    """By rule in place of a model: the cells, not the answers' quality."""
    said = run("contracts", tmp_path, MEMAGENT_CONFIG=SCRIPTED)
    assert "agreement-2.txt: 4471902" in said and "<b>4471902</b>" in said
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_contracts_by_the_bundled_reader(tmp_path):
    assert "agreement-2.txt: 4471902" in run("contracts", tmp_path)


@pytest.mark.slow
def test_evaluate(tmp_path):
    said = run("evaluate", tmp_path)
    assert "exact" in said and (tmp_path / "evaluation.html").exists()


@pytest.mark.slow
def test_train(tmp_path):
    assert "train-" in run("train", tmp_path)
