"""The pages of the documentation, taken apart: links, anchors, code, commands."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}
"""The environment of a program that runs elsewhere with this checkout's packages."""
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "memagent" / "nano").glob("*/README.md"),
    ]
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\[\]]*\]\(([^()\s]+)\)")
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")


def prose(page: Path) -> str:
    """The page without its code blocks."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE) if "```" not in text else text


def links(page: Path) -> list[str]:
    return _LINK.findall(re.sub(_INLINE, "", prose(page)))


def inline_code(page: Path) -> list[str]:
    return [" ".join(code.split()) for code in _INLINE.findall(prose(page))]


def blocks(page: Path, language: str | None = None) -> list[str]:
    """The fenced code of a page; `language` chooses, empty for blocks that name none."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for said, code in found if language is None or said == language]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, named as GitHub names them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def commands(page: Path) -> Iterator[str]:
    """The `memagent` commands of a page's code, each on one line and without its comment."""
    text = page.read_text(encoding="utf-8")
    indented = re.findall(r"(?:^ {4}.*\n)+", _FENCE.sub("", text), re.MULTILINE)
    spans = [code for code in inline_code(page) if "<-" not in code]  # which way imports run is no command
    for code in [*blocks(page, ""), *blocks(page, "sh"), *indented, *spans]:
        for line in re.sub(r"\\\n\s*", " ", code).splitlines():
            for part in re.split(r";\s", re.sub(r"\s#.*", "", line)):
                if found := re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?memagent (.*)", part):
                    yield re.sub(r"\[(-[^\]]*)\]", r"\1", found[1])  # an option that may be left out
