"""One word for one thing: what had another name before is nowhere called by it."""

import re
import subprocess

import pytest

from tests.support.pages import ROOT

OLD = {
    r"\bdesks?\b": "review pages, memagent review",
    r"(?<!each )(?<!every )(?<!at )\bnights?\b": "scheduled run, digest",
    r"\b[Qq]uality gates?\b|\[gates\]|\bgates\.(hold|sample|max)": "quality checks",
    r"\blanes?\b": "parallel spans",
    r"\b[Ss]tanding questions?\b": "default questions",
    r"\bheld (back with|runs?|digests?|answers?)\b|--held\b": "withheld",
    r"\bmemagent publish\b": "memagent release",
    r"\b(Asker|Drained|NightStatus|GatesConfig)\b": "EngineClient, Stopped, ScheduledRunStatus, QualityConfig",
    r"\bas one stream\b": "concatenated",
    r"not to be had|half of a character|again and again": "unavailable, unpaired surrogate, keeps crashing",
    r"train( audit| plan)? --config\b": "--recipe",
}
FILES = [
    ROOT / name
    for name in subprocess.check_output(["git", "ls-files"], text=True, cwd=ROOT).splitlines()
    if re.match(r"(memagent|infra|pipelines|docs)/|README|CONTRIBUTING|CHANGELOG|Makefile", name)
    and name.endswith((".py", ".md", ".j2", ".js", ".toml", ".yaml", ".yml", "Makefile"))
    and not re.match(r"docs/results/", name)
]
ALLOWED = {
    ("memagent/evaluation/needles.toml", ""),  # words of planted facts
    ("memagent/evaluation/ruler/kinds.py", ""),
}


@pytest.mark.parametrize("pattern", OLD)
def test_what_has_a_new_name_is_not_called_by_the_old_one(pattern):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in FILES
        if path.is_file() and (str(path.relative_to(ROOT)), "") not in ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := re.search(pattern, line)) and (str(path.relative_to(ROOT)), match[0].strip(".")) not in ALLOWED
    ]
    assert not found, f"say {OLD[pattern]}:\n" + "\n".join(found)
