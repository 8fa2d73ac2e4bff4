"""A cluster of two nodes: the store is checked, nodes that join are used, and those that are lost lose nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import HERE, ROOT


@pytest.mark.parametrize("scene", ["beside", "unseen", "joins", "gpus"])
def test_on_two_nodes(scene: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.cluster_nodes", scene, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
