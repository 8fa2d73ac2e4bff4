"""What is said of known vulnerabilities: those that nobody has judged fail, and no answer is no good answer."""

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tools.advisories import NOT_LOOKED_UP, VULNERABLE, Finding, ignored, judge, of_dump, of_pip_audit, pinned

LOCK = ROOT / "infra" / "deploy" / "lock"
FOUND = Finding("jinja2", "3.1.0", ("PYSEC-1", "CVE-1"), ("3.1.6",))


def _dump(folder: Path, *advisories: dict) -> Path:
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for advisory in advisories:
            archive.writestr(f"{advisory['id']}.json", json.dumps(advisory))
    return folder / "all.zip"


def _advisory(*events: dict[str, str], name: str = "Jinja2", **more: object) -> dict:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}]
    package = {"name": name, "ecosystem": "PyPI"}
    return {"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": [{"package": package, "ranges": ranges}], **more}


@pytest.mark.parametrize(
    ("events", "hit"),
    [
        ([{"introduced": "0"}, {"fixed": "3.1.6"}], True),
        ([{"introduced": "0"}, {"fixed": "3.1.0"}], False),
        ([{"introduced": "3.2"}], False),
        ([{"introduced": "3.0"}, {"last_affected": "3.1.0"}], True),
        ([{"introduced": "1.0"}, {"fixed": "2.0"}, {"introduced": "3.0.9"}, {"fixed": "3.1.6"}], True),
    ],
)
def test_a_dump_says_which_versions_are_affected(tmp_path, events, hit):
    lookup = of_dump(_dump(tmp_path, _advisory(*events)), {"jinja2": "3.1.0", "six": "1.0"})
    assert lookup.looked_up == 2 and bool(lookup.findings) == hit


def test_what_is_withdrawn_or_of_another_package_is_nothing(tmp_path):
    ever = {"introduced": "0"}
    gone = _advisory(ever, withdrawn="2026-01-01")
    assert not of_dump(_dump(tmp_path, gone), {"jinja2": "3.1.0"}).findings
    assert not of_dump(_dump(tmp_path, _advisory(ever, name="other")), {"jinja2": "3.1.0"}).findings


def test_a_finding_fails_until_it_is_judged(tmp_path, capsys):
    lookup = of_dump(_dump(tmp_path, _advisory({"introduced": "0"}, {"fixed": "3.1.6"})), {"jinja2": "3.1.0"})
    assert lookup.findings == [FOUND]
    assert judge("cpu", lookup, {}) == VULNERABLE and "PYSEC-1, CVE-1; fixed in 3.1.6" in capsys.readouterr().out
    assert judge("cpu", lookup, {"CVE-1": "templates are our own"}) == 0


def test_no_answer_is_no_good_answer(capsys):
    skipped = {"dependencies": [{"name": "six", "skip_reason": "Dependency not found on PyPI"}]}
    for said in ("", "Traceback", json.dumps(skipped)):
        assert judge("cpu", of_pip_audit(said), {}) == NOT_LOOKED_UP
    assert "NOT AUDITED" in capsys.readouterr().err
    known = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3.1.6"]}
    one = {"name": "jinja2", "version": "3.1.0", "vulns": [known]}
    both = of_pip_audit(json.dumps({"dependencies": [one, *skipped["dependencies"]]}))
    assert (both.looked_up, both.unknown, both.findings) == (1, ["six"], [FOUND])


def test_what_is_passed_over_has_a_reason(tmp_path):
    ignored(LOCK / "ignored-advisories.lst")
    (tmp_path / "list").write_text("# why\nCVE-1 not used: no template is from outside\nCVE-2\n")
    with pytest.raises(SystemExit, match="line 3: CVE-2 has no reason"):
        ignored(tmp_path / "list")


def test_all_of_a_lock_is_looked_up():
    pins = pinned(LOCK / "cpu.txt")
    assert len(pins) > 200 and pins["torch"].startswith("2.")
