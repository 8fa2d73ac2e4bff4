"""The package without its extras: what needs none works, and what needs one names it."""

import json
import os
import subprocess
import sys

import pytest

from memagent.errors import EXTRAS
from tests.support.pages import ROOT

_HIDES = f"""
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
"""
_RUNS = """
import contextlib, io, json, sys
from pipelines.cli.main import main

done = []
for argv in json.loads(sys.argv[1]):
    sys.argv[1:], said, status = argv, io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    done.append([status, said.getvalue()])
print(json.dumps(done))
"""
ASK = ("--engine", "scripted", "--model")
QUESTION = "What is the access code of cedar-gate?"
NEEDLES = ("evaluate", "--suite", "needles", "--lengths", "8k", "--n", "1")
NEEDS = {
    "review": (("review",), "serve"),
    "mcp": (("mcp",), "serve"),
    "metrics": (("metrics",), "serve"),
    "up": (("up",), "flows"),
    # one that another command keeps warm would not need vLLM in this process
    "engine": ((*NEEDLES, "--set", "engine.keep_alive=0"), "cpu"),
    "method": ((*NEEDLES, "--method", "bm25", "--engine", "scripted"), "evaluate"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory, model_folder) -> dict[str, tuple[int, str]]:
    """What commands say in a process that has no extras; all in one, as its start is what takes time."""
    folder = tmp_path_factory.mktemp("extras")
    notes, site = folder / "notes", folder / "site"
    notes.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(_HIDES)
    (notes / "gate.txt").write_text("The access code of cedar-gate is 4471902. " * 3)
    (notes / "page.html").write_text("<p>The access code of frosty-grove is 8812345.</p>")
    (notes / "letter.rtf").write_text(r"{\rtf1 The gate is open.}")
    (folder / "questions.csv").write_text(f"question\n{QUESTION}\n")
    reader = (*ASK, str(model_folder))
    commands = [
        ("ingest", "notes", str(notes)),
        ("quarantine", "notes", "--json"),
        ("ask", "notes", "-q", QUESTION, *reader),
        ("digest", "notes", "--no-fetch", "--questions", str(folder / "questions.csv"), *reader),
        ("report", "last", "-o", str(folder / "report.html")),
        *(command for command, _ in NEEDS.values()),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "MEMAGENT_STORE": str(folder / "store"),
    }
    argv = [sys.executable, "-c", _RUNS, json.dumps(commands)]
    made = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=folder)
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout.splitlines()[-1])
    names = [*(command[0] for command in commands[: -len(NEEDS)]), *NEEDS]
    return {name: (status, text) for name, (status, text) in zip(names, said, strict=True)}


def test_folders_are_read_and_reported_without_any_extra(done):
    quarantined = done["quarantine"][1]
    assert done["ingest"][0] == 5 and "striprtf is not installed: pip install 'memagent[office]'" in quarantined
    assert done["ask"][0] == 5 and "4471902" in done["ask"][1], "the letter failed, and the others are answered"
    assert done["digest"][0] == done["report"][0] == 0, done["digest"][1] + done["report"][1]


@pytest.mark.parametrize(("name", "extra"), [(name, extra) for name, (_, extra) in NEEDS.items()])
def test_what_needs_an_extra_names_it(done, name, extra):
    status, said = done[name]
    assert status == 2 and f"pip install 'memagent[{extra}]'" in said and "Traceback" not in said, said
