"""The pages of answers: lists, also as files, an answer beside its document, its memory, its page, and the forms of
verdicts.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from infra.sources.base import BETWEEN_PAGES
from infra.store.documents import PageNumbers
from infra.store.location import Corpus
from infra.store.schemas import AnswerRow
from memagent.errors import UsageError
from memagent.quality.verdicts import Verdict, current, disputed, review
from memagent.records import LEVELS, text_hash
from pipelines.io.answers import cells_of
from pipelines.io.writer import Link, Row, TableLayout, flat, write_file
from pipelines.views.memory import histories
from pipelines.views.passages import PagePicture, PageRequest, Span, find_words, passage, place_of
from pipelines.views.visible_answers import Citations, question_ids, reader_warnings
from pipelines.web.review import listing
from pipelines.web.review.listing import Filter, ListedAnswer, whole
from pipelines.web.review.pages import Form, access_of, posted, render, service_of, session_of
from pipelines.web.review.service import Opinion, ReviewService, quotes

_CHANGES_MOST = 60
"""Changes of a memory on a page."""
_MARKED = 5_000
"""Characters of evidence that are marked on the page of a PDF."""
_SAID = ("accepted", "corrected", "rejected", "absent", "comment")


def answers(request: Request) -> Response:
    """Show a list of answers."""
    query, connection = request.query_params, service_of(request).index.read()
    chosen, me = Filter.parse(query), session_of(request).reviewer
    page = listing.page(connection, chosen, me, before=_id(query.get("before")), after=_id(query.get("after")))
    tallies = listing.tallies(connection, Filter(corpus=chosen.corpus, question=chosen.question))
    return render(
        request,
        "answers.html.j2",
        page=page,
        filter=chosen,
        total=listing.count(connection, chosen, me),
        judged=sum(n for (state, review), n in tallies.items() if state != "failed" and review != "open"),
        all=sum(n for (state, _), n in tallies.items() if state != "failed"),
        disputed=sum(n for (_, review), n in tallies.items() if review == "disputed"),
        corpora=listing.names(connection),
        questions=listing.questions(connection, chosen.corpus),
        levels=LEVELS,
        link=link,
    )


def answer(request: Request) -> Response:
    """Show an answer beside its document."""
    service, me, query = service_of(request), session_of(request).reviewer, request.query_params
    item, chosen = _item(request), Filter.parse(query)
    connection, row, verdicts = service.index.read(), service.answer(item), service.verdicts(item)
    evidence, said = quotes(row), review(verdicts, item.answer)
    if row is not None and said is not None and said.status == "corrected":
        evidence = [*Citations(Corpus(service.store, item.corpus), [row]).cite(row, said, item.doc_id)]
    document = query.get("document") or (evidence[0]["content_hash"] if evidence else item.content_hash)
    text = service.texts.get(item.corpus, document)
    find, last = query.get("find", ""), whole(query.get("at"))
    found = find_words(text, find, 0 if last is None else last + 1) if text and find else None
    spans = _spans(document, row, current(verdicts))
    if found:
        spans = [Span(*found, "right"), *spans]
        last = max(0, found[0] - 1_000)
    shown = passage(text, spans, last) if text is not None else None
    following = listing.beside(connection, chosen, me, item.id, on=True)
    previous = listing.beside(connection, chosen, me, item.id, on=False)
    source = _source(service, item, document)
    done, mine = _done(service, query.get("done"), me), _mine(verdicts, item, me)
    undo = mine.given_at if mine and (done is None or done[0] == "comment") else None
    return render(
        request,
        "answer.html.j2",
        item=item,
        row=row,
        evidence=evidence,
        place_of=place_of,
        verdicts=list(reversed(verdicts)),
        disputed=disputed(current(verdicts)),
        mine=mine,
        document=document,
        source=source,
        outdated=service.outdated(item, row),
        passage=shown,
        find=find,
        found=found,
        filter=chosen,
        following=following,
        previous=previous,
        link=link,
        done=done,
        undo=undo if undo and service.journal.find(undo) else None,
        is_pdf=source is not None and source["media_type"] == "application/pdf",
    )


def failure(request: Request) -> Response:
    """Show a reading that failed."""
    item = listing.find_failed(service_of(request).index.read(), _id(request.path_params["id"]))
    if item is None:
        raise HTTPException(404, "this failure is no longer listed: the question was answered since, or failed again")
    text = service_of(request).texts.get(item.corpus, item.content_hash)
    return render(request, "failure.html.j2", item=item, passage=passage(text, []) if text else None)


def memory(request: Request) -> Response:
    """Show how the memory changed: a part of the answer's page."""
    item = _item(request)
    told = histories(Corpus(service_of(request).store, item.corpus), [item.reading_id], item.run_id)
    history = told.get(item.reading_id)
    shown = history.shown(_CHANGES_MOST) if history else None
    return render(request, "memory.html.j2", history=history, shown=shown)


def pdf_page(request: Request) -> Response:
    """Show the page of a PDF that has the evidence: a part of the answer's page."""
    found = _page(request)
    url = f"{request.url.path}.png?{request.url.query}"
    return render(request, "page.html.j2", found=found if not isinstance(found, str) else None, why=found, url=url)


def pdf_picture(request: Request) -> Response:
    """Return that page as a picture."""
    found = _page(request)
    if isinstance(found, str):
        raise HTTPException(404, found)
    return Response(found.png, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


def _give(request: Request, form: Form) -> Response:
    """Take a verdict, and go on to the next answer."""
    service, me, item = service_of(request), session_of(request).reviewer, _item(request)
    said = form.get("said", "")
    if said == "enter":  # in a field
        said = "comment" if form.get("comment", "").strip() and not form.get("answer", "").strip() else "corrected"
    if said not in _SAID:
        raise UsageError(f"verdict {said!r}: one of {', '.join(_SAID)}")
    start, end = whole(form.get("start")), whole(form.get("end"))
    opinion = Opinion(
        said=said,  # type: ignore[arg-type]
        answer=form.get("answer", ""),
        comment=form.get("comment", ""),
        span=None if start is None or end is None else (start, end),
        decides=form.get("decides") == "1",
        shown=form.get("shown"),
    )
    chosen = Filter.parse(form)
    given_at = service.give(item, opinion, me, form.get("document") or None)
    follow = None
    if said != "comment":
        follow = listing.beside(service.index.read(), chosen, me, item.id, on=True)
    target = follow or item
    return RedirectResponse(link(target, chosen, done=given_at.isoformat()), 303)


def _undo(request: Request, form: Form) -> Response:
    try:
        given_at = datetime.fromisoformat(form.get("given_at", ""))
    except ValueError as error:
        raise UsageError("which verdict?") from error
    item = service_of(request).undo(given_at, session_of(request).reviewer)
    return RedirectResponse(link(item, Filter.parse(form)), 303)


give, undo = posted(_give), posted(_undo)


def link(item: ListedAnswer, chosen: Filter | None = None, **more: str) -> str:
    """Return the address of an item's page, as one of a list."""
    if not item.reading_id:
        return f"/failed/{item.id}"
    query = (chosen or Filter()).query(**more)
    return f"/answers/{quote(item.corpus, safe='')}/{quote(item.reading_id, safe='')}" + (f"?{query}" if query else "")


def _item(request: Request) -> ListedAnswer:
    corpus, reading_id = request.path_params["corpus"], request.path_params["reading_id"]
    item = listing.find(service_of(request).index.read(), corpus, reading_id)
    if item is None:
        raise HTTPException(404, f"there is no answer {reading_id} in corpus {corpus!r}, or it is not listed yet")
    return item


def _id(value: str | None) -> int:
    return whole(value) or 0


def _mine(verdicts: list[Verdict], item: ListedAnswer, me: str) -> Verdict | None:
    """Return what a person said last of this answer, if it still counts for something."""
    mine = [each for each in verdicts if each.reviewer == me and each.reading_id == item.reading_id]
    counting = [each for each in mine if each.kind != "comment"]
    return counting[-1] if counting and counting[-1].kind != "withdrawn" else None


def _done(service: ReviewService, given_at: str | None, me: str) -> tuple[str, datetime, ListedAnswer | None] | None:
    """Return what was said a moment ago, when, and of which item."""
    try:
        at = datetime.fromisoformat(given_at) if given_at else None
    except ValueError:
        return None
    rows = [row for row in service.journal.find(at) if row["reviewer"] == me] if at else []
    if not rows or at is None:
        return None
    absent = rows[0]["verdict"] == "corrected" and not rows[0]["answer"]
    item = listing.find(service.index.read(), rows[0]["corpus"], rows[0]["reading_id"])
    return "not in the document" if absent else rows[0]["verdict"], at, item


def _spans(document: str, row: AnswerRow | None, counting: list[Verdict]) -> list[Span]:
    pieces = [piece for piece in quotes(row) if piece["content_hash"] == document]
    right = [Span(s.start, s.end, "right") for each in counting for s in each.spans if s.content_hash == document]
    segments = [Span(piece["char_start"], piece["char_end"], "segment") for piece in pieces]
    return [span for span in (*right, *map(place_of, pieces), *segments) if 0 <= span.start < span.end]


def _source(service: ReviewService, item: ListedAnswer, document: str) -> dict[str, str] | None:
    return next(iter(_sources(service, item, document)), None)


def _sources(service: ReviewService, item: ListedAnswer, document: str) -> list[dict[str, str]]:
    """Return the documents of an item's corpus that have, or had, a text: those that are present first."""
    rows = service.index.read().execute(
        "SELECT doc_id, title, source, media_type, warnings, present FROM version WHERE content_hash = ? AND corpus = "
        "(SELECT id FROM corpus WHERE name = ?) ORDER BY present DESC, doc_id",
        (document, item.corpus),
    )
    return [dict(row) for row in rows]


def _page(request: Request) -> PagePicture | str:
    """Return the page of an item's evidence, or of the place that the query names, or why there is none."""
    service, item, query = service_of(request), _item(request), request.query_params
    document = query.get("document") or item.content_hash
    source = _source(service, item, document)
    start, end = _id(query.get("start")), _id(query.get("end"))
    if source is None or source["media_type"] != "application/pdf":
        return "the document is no PDF"
    place = PageNumbers(Corpus(service.store, item.corpus), texts=[document]).bounds(document, start)
    text = service.texts.get(item.corpus, document)
    if place is None or text is None:
        return "its pages are not known, or its text is no longer there"
    number, first, after = place
    page = text[first : None if after is None else after - len(BETWEEN_PAGES)]
    return service.pages.get(PageRequest(source["source"], number, text_hash(page), text[start:end][:_MARKED]))


_TEXTS = (
    *("corpus", "document", "title", "question_id", "question", "answer", "review", "engine_answer", "quote"),
    *("run_id", "reading_id", "link"),
)
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(_TEXTS, pa.string()),
    **dict.fromkeys(("reviewed_by", "comments", "warnings"), pa.list_(pa.string())),
    **dict.fromkeys(("found", "verbatim"), pa.bool_()),
    "confidence": pa.float32(),
    "confidence_level": pa.string(),
    "answered_at": pa.timestamp("us", tz="UTC"),
}
COLUMNS = pa.schema([(name, _TYPES[name]) for name in cells_of(_TYPES)])
"""Columns of all formats, named and ordered as `memagent answers` has them; `warnings` has why a reading failed."""


def _cells(row: Row) -> Iterator[object]:
    for name in COLUMNS.names:
        yield Link(row[name], "open on the review pages") if name == "link" else flat(row[name])


_LAYOUT = TableLayout(COLUMNS, COLUMNS.names, _cells, group=5_000)


def exported_rows(service: ReviewService, chosen: Filter, reviewer: str, address: str) -> Iterator[Row]:
    """Yield the items of a filter as rows of `COLUMNS`, as one person sees them, with links to this review server."""
    ids = cache(lambda corpus: question_ids(Corpus(service.store, corpus)))
    for item, document in _documents(service, listing.every(service.index.read(), chosen, reviewer)):
        verdicts = service.verdicts(item)
        failed = item.state == "failed"
        quote = "" if failed else _quote(service, item, verdicts)
        of_reader, of_text = (text.split("; ") if text else [] for text in (item.warnings, document["warnings"]))
        yield {
            "corpus": item.corpus,
            "document": document["doc_id"],
            "title": document["title"],
            "question_id": ids(item.corpus).get(item.question, item.question_id),
            "question": item.question,
            "answer": "" if failed else item.answer if item.right is None else item.right,
            "review": "" if item.review == "open" else item.review,
            "engine_answer": "" if failed else item.answer,
            "found": None if failed else item.state == "found",
            "warnings": [f"failed: {item.answer}"] if failed else [*reader_warnings(of_reader, item.review), *of_text],
            "quote": quote,
            "run_id": item.run_id,
            "reading_id": item.reading_id,
            "link": address + link(item),
            "reviewed_by": sorted({each.reviewer for each in current(verdicts)}),
            "comments": [f"{each.reviewer}: {each.comment}" for each in verdicts if each.comment],
            "verbatim": (bool(item.verbatim) or quote != item.quote) if quote else None,
            "confidence": item.confidence,
            "confidence_level": item.level or None,
            "answered_at": item.answered_at,
        }


def _quote(service: ReviewService, item: ListedAnswer, verdicts: Sequence[Verdict]) -> str:
    """Return the quote of the answer that is shown: the reader's; of a corrected one, what people marked."""
    found = review(verdicts, item.answer)
    if found is None or found.status != "corrected":
        return item.quote
    texts = ((service.texts.get(item.corpus, span.content_hash) or "", span) for span in found.spans[:1])
    return next((text[span.start : span.end] for text, span in texts), "")


def _documents(
    service: ReviewService, items: Iterable[ListedAnswer]
) -> Iterator[tuple[ListedAnswer, Mapping[str, str]]]:
    """Yield items with each document that has their text; what failed is of one document."""
    for item in items:
        own = {"doc_id": item.doc_id, "title": item.title, "warnings": "; ".join(service.outdated(item))}
        found = [] if item.state == "failed" else _sources(service, item, item.content_hash)
        yield from ((item, document) for document in [each for each in found if each["present"]] or [own])


def export(request: Request) -> Response:
    """Return the answers of a filter as a file."""
    kind, chosen = request.path_params["kind"], Filter.parse(request.query_params)
    if kind not in ("csv", "parquet", "xlsx"):
        raise HTTPException(404, f"there is no format {kind!r}: csv, parquet, xlsx")
    items = exported_rows(service_of(request), chosen, session_of(request).reviewer, access_of(request).address)
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / f"answers.{kind}"
    write_file(path, items, kind, _LAYOUT)  # all of it in this thread, which the index's connection belongs to
    return FileResponse(path, filename=path.name, background=BackgroundTask(folder.cleanup))
