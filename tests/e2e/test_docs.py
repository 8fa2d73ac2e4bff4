"""Each page of a task begins with commands that work as they stand, with their real output.

`MEMAGENT_UPDATE_DOCS=1 pytest tests/e2e/test_docs.py` writes the output that the commands give now into the pages.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import HERE, ROOT

TASKS = ("ask", "scheduled-runs", "scale", "review", "own-model", "training", "operate", "extending")
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING = (
    (r"(?m)^.* GiB, process \d+\n", ""),  # an engine that an earlier command has left
    (r"\d+ wrong answers", "4393 wrong answers"),  # needles are hidden in the texts of what is installed
    (r"\d{8}-\d{6}-[0-9a-f]{6}", "20261124-091500-845efb"),
    (r"\brl-[0-9a-f]{6}@", "rl-0205aa@"),  # a hash of the folder's path
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*", "2026-11-24T09:15:00+00:00"),
    (r"\b(\d+ min )?\d+(\.\d+)? m?s\b", "10 s"),
    (r" \([\d.]+ a second[^)]*\)", ""),
    (r"[─ ]{2,}", "  "),  # columns are as wide as the times and names in them
)


def steps(block: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with its output."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def plain(output: str) -> str:
    """Return an output without what differs from run to run."""
    for pattern, same in _VARYING:
        output = re.sub(pattern, same, output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


def run(command: str, folder: Path) -> str:
    """Run a command in a folder; return what it prints."""
    programs = str(Path(sys.executable).parent)
    environment = {**HERE, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    environment.pop("MEMAGENT_STORE", None)
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
    return done.stdout.replace(str(folder), "/home/you")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_page_begins_with_commands_that_work(task: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / f"{task}.md"
    text = page.read_text()
    block = _BLOCK.search(text)
    assert block and "```" not in text[: block.start()], "the first code of the page"
    folder = tmp_path / "you"
    folder.mkdir()
    given = steps(block[1])
    said = [(command, run(command, folder)) for command, _ in given]
    if os.environ.get("MEMAGENT_UPDATE_DOCS"):
        lines = "".join(f"$ {command}\n{output}" for command, output in said)
        page.write_text(text[: block.start(1)] + re.sub(r" +$", "", lines, flags=re.MULTILINE) + text[block.end(1) :])
        return
    assert [(command, plain(output)) for command, output in said] == [(c, plain(output)) for c, output in given]
