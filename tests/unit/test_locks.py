"""Every package of every lock is pinned, with hashes of what may be installed."""

import re

import pytest

from tests.support.pages import ROOT

LOCKS = sorted(path for path in (ROOT / "infra" / "deploy" / "lock").glob("*.txt") if path.name != "left-out.txt")
_PINNED = re.compile(
    r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,_-]+\])?==[^ ;]+( ; [^\\]+)?((?: \\\n)? +--hash=sha256:[0-9a-f]{64})+"
)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_is_pinned_with_hashes(path):
    packages = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).strip())
    wrong = [package.split("\n")[0] for package in packages if not _PINNED.fullmatch(package)]
    assert len(packages) > 0 and not wrong
    names = [re.split(r"[=\[]", package)[0] for package in packages]
    assert len(set(names)) == len(names)


def test_locks_are_there():
    assert {path.stem for path in LOCKS} >= {"cpu", "gpu", "docs", "supply", "uv"}
