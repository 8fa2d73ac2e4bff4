"""OpenDocument texts, presentations and books for tests."""

import io
import zipfile
from collections.abc import Mapping

_NAMES = (
    " ".join(
        f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
        for short, long in {
            "office": "office",
            "text": "text",
            "table": "table",
            "style": "style",
            "draw": "drawing",
            "svg": "svg-compatible",
            "form": "form",
            "number": "datastyle",
        }.items()
    )
    + ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xml="http://www.w3.org/XML/1998/namespace"'
)


def odt(
    body: str, automatic: str = "", styles: str = "", title: str = "", manifest: str = "", doctype: str = ""
) -> bytes:
    """An OpenDocument text of a body's XML, automatic styles, further styles and master pages, and a title."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("META-INF/manifest.xml", f"<manifest>{manifest}</manifest>")
        content = f"<office:automatic-styles>{automatic}</office:automatic-styles><office:body><office:text>{body}"
        archive.writestr("content.xml", f"{doctype}<c {_NAMES}>{content}</office:text></office:body></c>")
        archive.writestr("styles.xml", f"<s {_NAMES}>{styles}</s>")
        archive.writestr("meta.xml", f"<m {_NAMES}><dc:title>{title}</dc:title></m>")
    return file.getvalue()


KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_SLIDE_NAMES = f'xmlns:p="p" xmlns:a="a" xmlns:r="{KINDS}"'
Part = tuple[str, str]
"""Kind of a part, and its content."""


def pptx(slides: Mapping[str, str], beside: Mapping[str, dict[str, Part]] | None = None) -> bytes:
    """A presentation of slides by their name, in this order; `beside` has the parts that a slide refers to."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("_rels/.rels", _relations({"rId1": ("officeDocument", "ppt/presentation.xml")}))
        listed = "".join(f'<p:sldId id="{256 + i}" r:id="{name}"/>' for i, name in enumerate(slides))
        main = f'<p:sldIdLst>{listed}</p:sldIdLst><p:sldSz cx="9144000" cy="6858000"/>'
        archive.writestr("ppt/presentation.xml", f"<p:presentation {_SLIDE_NAMES}>{main}</p:presentation>")
        parts = {name: ("slide", f"slides/{name}.xml") for name in sorted(slides)}
        archive.writestr("ppt/_rels/presentation.xml.rels", _relations(parts))
        for name, shapes in slides.items():
            tree = f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>"
            archive.writestr(f"ppt/slides/{name}.xml", f"<p:sld {_SLIDE_NAMES}>{tree}</p:sld>")
            others = (beside or {}).get(name, {})
            kinds = {key: (kind, f"../{key}.xml") for key, (kind, _) in others.items()}
            archive.writestr(f"ppt/slides/_rels/{name}.xml.rels", _relations(kinds))
            for key, (_, content) in others.items():
                archive.writestr(f"ppt/{key}.xml", f"<p:part {_SLIDE_NAMES}>{content}</p:part>")
    return file.getvalue()


def _relations(parts: Mapping[str, tuple[str, str]]) -> str:
    rows = "".join(f'<Relationship Id="{k}" Type="{KINDS}/{kind}" Target="{t}"/>' for k, (kind, t) in parts.items())
    return f"<Relationships>{rows}</Relationships>"


def shape(*lines: str, place: str = "") -> str:
    kind = f'<p:nvSpPr><p:nvPr><p:ph type="{place}"/></p:nvPr></p:nvSpPr>' if place else ""
    return f"<p:sp>{kind}{body(*lines)}</p:sp>"


def body(*lines: str) -> str:
    return f"<p:txBody>{''.join(f'<a:p><a:r><a:t>{line}</a:t></a:r></a:p>' for line in lines)}</p:txBody>"


_CHAPTER = "<html><head><title>{0}</title></head><body><h1>{0}</h1><p>It rained.</p></body></html>"


def epub(order: tuple[str, ...], encrypted: str = "", missing: str = "", chapter: str = "", sheet: str = "") -> bytes:
    """A book of two chapters in an order; its files stand in a folder of their own, with a blank in one name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("META-INF/container.xml", "<container><rootfile full-path='OEBPS/book.opf'/></container>")
        items = "".join(f"<item id='{name}' href='text/{name}%20x.xhtml'/>" for name in ("one", "two"))
        items += "<item id='sheet' href='a.css'/>" if sheet else ""
        spine = "".join(f"<itemref idref='{name}'/>" for name in order)
        head = "<metadata xmlns:dc='dc'><dc:title>The Book</dc:title></metadata>"
        archive.writestr(
            "OEBPS/book.opf", f"<package>{head}<manifest>{items}</manifest><spine>{spine}</spine></package>"
        )
        for name in {"one", "two"} - {missing}:
            link = "<link rel='stylesheet' href='../a.css'/></head>" if sheet else "</head>"
            page = chapter or _CHAPTER.format(name)
            page = page.replace("</head>", link) if "</head>" in page else f"<head>{link}{page}"
            archive.writestr(f"OEBPS/text/{name} x.xhtml", page)
        if sheet:
            archive.writestr("OEBPS/a.css", sheet)
        if encrypted:
            method = f"<EncryptionMethod Algorithm='{encrypted}'/>"
            archive.writestr("META-INF/encryption.xml", f"<encryption>{method}</encryption>")
    return file.getvalue()
