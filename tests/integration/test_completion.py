"""Completion in a shell, as `memagent --install-completion` sets it up: by bash itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import HERE

_ASK = """
source /dev/stdin <<< "$(memagent --show-completion)"
complete -p memagent
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _memagent_completion memagent
    echo "${COMPREPLY[@]}"
done
"""
_COMMAND = f"""#!/bin/sh
exec {sys.executable} -c 'import sys; sys.argv[0] = "memagent"; from pipelines.cli.main import main; main()' "$@"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that sets completion up and prints what is offered for each line of its input."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "memagent").write_text(_COMMAND)
    (folder / "memagent").chmod(0o755)
    (folder / "ask.sh").write_text(_ASK)
    return folder / "ask.sh"


def test_bash_completes_commands_and_options(bash: Path) -> None:
    typed = {
        "memagent eval": "evaluate",
        "memagent evaluate --suit": "--suite",
        "memagent train --dat": "--data --dataset",
        "memagent policies roll": "rollback",
        "memagent status --nosuch": "",
    }
    environment = {**HERE, "PATH": f"{bash.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(bash)], input="\n".join(typed) + "\n", env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    installed, *offered = done.stdout.splitlines()
    assert installed == "complete -o default -F _memagent_completion memagent"
    assert dict(zip(typed, offered, strict=True)) == typed
