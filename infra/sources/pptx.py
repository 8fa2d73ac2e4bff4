"""PowerPoint presentations (.pptx): the texts of the slides, from the XML of their parts (ECMA-376 part 1, 19)."""

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from infra.sources.base import Parsed, ParseRequest, joined_pages, unread, within
from infra.sources.decoding import clean
from infra.sources.office import OfficeArchive, attribute, child, drawn_lines, local_name, not_read, opened

_MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
_TITLES = ("title", "ctrTitle")


def parse_pptx(stream: BinaryIO, request: ParseRequest) -> Iterator[Parsed]:
    """Yield the presentation's text, each slide a page: its title, shapes and tables, then its comments and notes.

    Raises SourceError: ``encrypted``, ``broken``, ``bomb``, ``too-large``.
    """
    with opened(stream, request, "PowerPoint presentation", ".pptx") as archive:
        presentation = _Presentation(OfficeArchive(archive))
        slides = list(within(request.allowance, presentation.slides()))
        presentation.not_read["unreadable letter"] = sum(slide.count("\ufffd") for slide in slides)
    text, starts = joined_pages(slides)
    title, warnings = clean(presentation.title), unread(presentation.not_read)
    yield Parsed(text, title, _MEDIA_TYPE, page_starts=starts, warnings=warnings)


class _Presentation:
    """The parts of a file, and the text of them in order."""

    def __init__(self, archive: OfficeArchive) -> None:
        self._archive, self.title = archive, archive.title()
        self.not_read = archive.not_read
        """Parts that are not in the slides so far."""
        self._seen = set[str]()
        """Layouts and masters whose fixed texts are in the slides so far."""

    def slides(self) -> Iterator[str]:
        root, parts = self._archive.xml(self._archive.main), self._archive.related(self._archive.main)
        size = child(root, "sldSz")
        tenth = int(attribute(size, "cx") or 0) * int(attribute(size, "cy") or 0) / 10
        for slide in child(root, "sldIdLst") if child(root, "sldIdLst") is not None else ():
            # An id without a prefix is a number; the other names the part.
            keys = [value for name, value in slide.attrib.items() if name.endswith("}id")]
            path = parts[keys[0]][1]
            yield clean("\n".join(self._lines(path, tenth or float("inf"))))

    def _lines(self, path: str, large: float) -> Iterator[str]:
        slide, parts = self._archive.xml(path), self._archive.related(path)
        if attribute(slide, "show") in ("0", "false"):
            yield "(hidden slide)"
        self.not_read.update(not_read(slide, large))
        self.not_read["equation"] += sum(1 for _ in slide.iter("{*}oMath"))  # its signs are read, not how they stand
        shapes = list(_shapes(child(child(slide, "cSld"), "spTree")))
        for shape in sorted(shapes, key=lambda one: _placeholder(one) not in _TITLES):
            if _placeholder(shape) != "sldNum":
                yield from _texts(shape)
        yield from self._fixed(parts)
        for kind, part in parts.values():
            if kind == "diagramData":
                yield from drawn_lines(self._archive.xml(part))
                self.not_read["diagram"] -= 1
            elif kind == "comments":
                for comment in self._archive.elements(part, "cm"):
                    said = child(comment, "text")
                    yield f"Comment: {said.text}" if said is not None else "\n".join(drawn_lines(comment))
            elif kind == "notesSlide":
                notes = _shapes(child(child(self._archive.xml(part), "cSld"), "spTree"))
                said = [line for one in notes if _placeholder(one) == "body" for line in _texts(one)]
                yield from ["Notes:", *said] if said else []

    def _fixed(self, parts: Mapping[str, tuple[str, str]], of: str = "slideLayout") -> Iterator[str]:
        """Yield what a layout and its master show on each slide, with the first one."""
        for kind, part in parts.values():
            if kind == of and part not in self._seen:
                self._seen.add(part)
                shapes = _shapes(child(child(self._archive.xml(part), "cSld"), "spTree"))
                yield from (line for one in shapes if not _placeholder(one) for line in _texts(one))
                yield from self._fixed(self._archive.related(part), "slideMaster")


def _shapes(tree: Any) -> Iterator[Any]:
    """Yield the shapes of a tree that are shown, those of its groups among them."""
    for one in tree if tree is not None else ():
        if attribute(next(one.iter("{*}cNvPr"), None), "hidden") in ("1", "true"):
            continue
        if local_name(one) in ("grpSp", "AlternateContent", "Choice"):
            yield from _shapes(one)
        elif local_name(one) in ("sp", "graphicFrame", "pic"):
            yield one


def _placeholder(shape: Any) -> str:
    """Return what a shape stands for: ``title``, ``body``; empty: nothing."""
    found = next(shape.iter("{*}ph"), None)
    return "" if found is None else found.get("type", "body")


def _texts(shape: Any) -> Iterator[str]:
    if (table := next(shape.iter("{*}tbl"), None)) is None:
        yield from drawn_lines(shape)
        return
    for row in table.iter("{*}tr"):
        yield "\t".join(" ".join(drawn_lines(cell)).replace("\t", " ") for cell in row.iter("{*}tc")).rstrip("\t")
