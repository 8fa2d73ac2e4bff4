"""Settings of a corpus in the store: sources, tags and default questions."""

import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import TypedDict

from fsspec.utils import glob_translate

from infra.sources.base import quoted
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from memagent.errors import MemagentError, UsageError
from memagent.records import Json, Question

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAGIC = re.compile(r"[*?\[]")


def check_name(corpus: str) -> str:
    """Return the name; it becomes part of paths, so it must be a plain word. Raises UsageError: it is not."""
    if not _NAME.fullmatch(corpus):
        raise UsageError(f"corpus name {corpus!r}: use letters, digits, '.', '_' and '-' (at most 64), as in contracts")
    return corpus


class CorpusRecord(TypedDict, total=False):
    """The settings of a corpus, in ``corpora/<name>.json``."""

    sources: list[str]
    questions: list[Json]
    """Fields of `memagent.records.Question`."""
    tags: dict[str, list[str]]
    """By source."""
    forgotten: list[str]
    """Content hashes of texts that are not to come back."""
    forgettings: int
    """How often documents were forgotten."""


def remember(corpus: Corpus, *, sources: Sequence[str] = (), questions: Sequence[Question] | None = None) -> None:
    """Add sources of a corpus, or set its default questions."""

    def change(known: CorpusRecord) -> None:
        known["sources"] = list(dict.fromkeys([*known.get("sources", []), *sources]))
        if questions is not None:
            known["questions"] = [asdict(question) for question in questions]

    _change(corpus, change)


def tag(corpus: Corpus, sources: Sequence[str], tags: Sequence[str]) -> None:
    """Tag all documents under some sources, present and future. Tags are never removed.

    Raises UsageError: a tag is no plain word.
    """
    for name in tags:
        if not _NAME.fullmatch(name):
            raise UsageError(f"tag {name!r}: use letters, digits, '.', '_' and '-' (at most 64), as in sensitive")

    def change(known: CorpusRecord) -> None:
        tagged = known.get("tags", {})
        known["tags"] = tagged | {source: sorted({*tagged.get(source, []), *tags}) for source in sources}

    _change(corpus, change)


def sources_of(corpus: Corpus) -> list[str]:
    """Return the sources that the corpus was ingested from."""
    return list(load_record(corpus).get("sources", []))


def forgotten(corpus: Corpus, more: Collection[str] = ()) -> frozenset[str]:
    """Return the content hashes of the texts that an ingest is to pass over; add some first."""

    def change(known: CorpusRecord) -> None:
        known["forgotten"] = sorted({*known.get("forgotten", []), *more})

    if more:
        _change(corpus, change)
    return frozenset(load_record(corpus).get("forgotten", []))


def count_forgetting(corpus: Corpus) -> None:
    """Count that documents of a corpus were forgotten."""
    _change(corpus, lambda known: known.update({"forgettings": known.get("forgettings", 0) + 1}))


def readers_of(store: Store, file: str) -> list[str]:
    """Return the corpora that have a file in one of their sources."""
    source = quoted(os.path.abspath(file))
    return [name for name in corpora(store) if any(_covers(each)(source) for each in sources_of(Corpus(store, name)))]


def tagger(corpus: Corpus) -> Callable[[str], tuple[str, ...]]:
    """Return a function that gives the tags of a document by its source: those of all sources that it lies under."""
    tagged = [(_covers(source), tags) for source, tags in load_record(corpus).get("tags", {}).items()]

    def tags_of(source: str) -> tuple[str, ...]:
        return tuple(sorted({tag for covers, tags in tagged if covers(source) for tag in tags}))

    return tags_of


def default_questions(corpus: Corpus) -> list[Question]:
    """Return the corpus's default questions."""
    return [
        Question(
            row["question_id"],
            row["text"],
            tuple(row["documents"]),
            None if row["answers"] is None else tuple(row["answers"]),
        )
        for row in load_record(corpus).get("questions", [])
    ]


def check_known(corpus: Corpus) -> Corpus:
    """Return a corpus that is there. Raises UsageError: it is not; the message names the nearest one that is."""
    known = corpora(corpus.store)
    if check_name(corpus.name) not in known and not Table(corpus.store, "documents").count(corpus.name):
        near = get_close_matches(corpus.name, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"memagent ingest {corpus.name} FOLDER"
        raise UsageError(f"there is no corpus {corpus.name!r} in {corpus.store.url}: {advice}")
    return corpus


def corpora(store: Store) -> list[str]:
    """Return the names of all corpora."""
    return [path.rsplit("/", 1)[-1].removesuffix(".json") for path in store.list("corpora", suffix=".json")]


def load_record(corpus: Corpus) -> CorpusRecord:
    """Return the settings of a corpus; none where it has no file."""
    try:
        return _parsed(corpus.store.read_bytes("corpora", f"{check_name(corpus.name)}.json"), corpus)
    except FileNotFoundError:
        return {}


def _parsed(data: bytes, corpus: Corpus) -> CorpusRecord:
    """Return the settings in a file. Raises MemagentError: it is damaged; what was forgotten is not guessed."""
    shapes = {"sources": list, "questions": list, "tags": dict, "forgotten": list, "forgettings": int}
    try:
        known: CorpusRecord = json.loads(data)
        whole = known.keys() <= shapes.keys()
        whole &= all(isinstance(known.get(name, shape()), shape) for name, shape in shapes.items())
        for question in known.get("questions", ()):
            Question(**question)
    except (ValueError, AttributeError, TypeError):
        whole = False
    if not whole:
        file = f"corpora/{corpus.name}.json"
        raise MemagentError(
            f"{file} of {corpus.store.url} is damaged. It has the corpus's sources, questions, tags and forgotten "
            "texts: restore it from a backup"
        )
    return known


def _change(corpus: Corpus, change: Callable[[CorpusRecord], None]) -> None:
    def changed(before: bytes | None) -> bytes:
        known: CorpusRecord = _parsed(before, corpus) if before is not None else {}
        change(known)
        return json.dumps(known, indent=1).encode()

    corpus.store.update_bytes(changed, "corpora", f"{check_name(corpus.name)}.json")


def _covers(given: str) -> Callable[[str], bool]:
    """Return whether a document's source lies under a source as it was given: a folder, file, glob or URL."""
    shown = quoted(given if "://" in given else os.path.abspath(given))
    folder = shown.rstrip("/") + "/"
    match = re.compile(glob_translate(shown)).match if _MAGIC.search(shown) else None
    return lambda source: source == shown or source.startswith(folder) or (match is not None and bool(match(source)))
