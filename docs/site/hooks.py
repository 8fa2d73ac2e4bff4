"""Hooks of the site's build: pages from outside docs/, their links, and the script that draws diagrams.

Pages are written to be read in the repository, so their links are paths in it. `on_page_markdown` turns them into links
between the site's pages; what is no page of the site (a licence, a folder of records) becomes plain text.
"""

import os
import re
from importlib.metadata import files as packaged
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "memagent/nano/rl/README.md": "nano-rl.md",
    "memagent/nano/sft/README.md": "nano-sft.md",
    "docs/site/api.md": "api.md",
}
"""Pages of the site that stand elsewhere in the repository."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Take in the pages that stand outside docs/, and Mermaid, so that no page fetches it."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    # A package for another purpose that ships Mermaid's own file; the theme would fetch it from a public server.
    (script,) = (file.locate() for file in packaged("mermaidx") or () if file.name == "mermaid.js")
    files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(script)))
    files.append(File.generated(config, "assets/site.css", abs_src_path=str(ROOT / "docs" / "site" / "site.css")))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    place = page.file.src_uri
    source = next((path for path, name in PAGES.items() if name == place), f"docs/{place}")
    known = {file.src_uri for file in files}
    return _LINK.sub(lambda link: site_link(link, source, place, known), markdown)


def site_link(link: re.Match[str], source: str, place: str, known: set[str]) -> str:
    """Return a link of the file `source` as the page `place` has it; plain text where it leads to no page."""
    target, _, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = os.path.normpath(PurePosixPath(source).parent / target)
    name = PAGES.get(path, path.removeprefix("docs/"))
    if name in known:
        relative = os.path.relpath(name, PurePosixPath(place).parent)
        return f"{link['image']}[{link['text']}]({relative}{'#' + anchor if anchor else ''})"
    return link["text"]
