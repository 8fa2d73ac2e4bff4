"""Forget documents: out of texts, segments, memories, answers, training rows, and the earlier versions of all tables.

Afterwards every file of the store is searched for passages of the forgotten texts. What was concatenated with
others is forgotten whole: its memories may hold what they said. An ingest passes a forgotten text over, by its hash.
Nothing else uses the store in the meantime. A forgetting that was interrupted is finished by the next one.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import translate
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.maintenance.erasure import (
    JOURNAL,
    ForgetJournal,
    Forgetting,
    complete,
    erase,
    interrupted,
    write_down,
    written_off,
)
from infra.maintenance.lineage import erased_with, find_texts, segment_parts, training_rows
from infra.store.buckets import one_of
from infra.store.claims import alone
from infra.store.corpora import check_known, count_forgetting, forgotten, sources_of
from infra.store.delta import Table
from infra.store.documents import current_documents, document_texts
from infra.store.location import Corpus, Store
from infra.store.policies import policies
from infra.store.runs import new_run_id
from infra.store.schemas import QaRow
from memagent.config import Config
from memagent.errors import UsageError
from memagent.records import mended
from pipelines.web.review.service import follow_forgettings

_WORDS, _PLACES, _SHARE = 8, 32, 3


class Shingles:
    """Texts that are looked for in other texts, whole or with passages cut out."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take shingles of each text, from its beginning to its end. Texts of fewer than eight words are left out:
        they are not told from others.
        """
        self._texts: list[frozenset[int]] = []
        self._of: dict[int, list[int]] = {}
        for text in texts:
            words = text.split()
            last = len(words) - _WORDS
            if last < 0:
                continue
            chosen = frozenset(_hash(words, last * place // (_PLACES - 1)) for place in range(_PLACES))
            for shingle in chosen:
                self._of.setdefault(shingle, []).append(len(self._texts))
            self._texts.append(chosen)

    def are_in(self, text: str) -> bool:
        """Whether a third of any of the texts is in another one, whatever stands around it: its words count."""
        seen: dict[int, set[int]] = {}
        for shingle in _all(text):
            for number in self._of.get(shingle, ()):
                seen.setdefault(number, set()).add(shingle)
                if _SHARE * len(seen[number]) >= len(self._texts[number]):
                    return True
        return False


def _all(text: str) -> Iterator[int]:
    words = text.split()
    return (_hash(words, first) for first in range(len(words) - _WORDS + 1))


def _hash(words: list[str], first: int) -> int:
    return hash(tuple(words[first : first + _WORDS]))


_log = logging.getLogger("memagent.forget")
_PASSAGE, _OF_A_TEXT, _CANDIDATES, _SEARCHED = 40, 6, 5_000, 500
"""Characters of a passage that the store is searched for; how many are of one text at most; how many are looked at for
some that no other text has, since contracts share most of their words; and how many are searched for at most."""
_CHOSEN = {"doc_id": "document", "source": "source", "title": "title"}
"""Fields that choose documents, by their names in a command."""
_EVALUATED = ("eval-files-", "eval-needles-", "eval-ruler-")
"""Begins the names of corpora that evaluations make of files and texts (`memagent.evaluation.suites.Suite.corpus`)."""


class Found(TypedDict):
    """A passage that is still in the store."""

    file: str
    passage: str


class ForgetSummary(TypedDict):
    """Result of a forgetting."""

    corpus: str
    documents: list[str]
    """doc_ids, the first thousand."""
    documents_count: int
    texts: int
    kept_texts: int
    """Texts that documents which stay have as well: they stay."""
    readings: int
    rows: int
    """Rows that went out of turn log, plans and streams."""
    training_rows: int
    policies: list[str]
    """Versions that may have learnt from them; their weights are as they were."""
    evaluated: list[str]
    """Corpora of evaluations that lost their copies of the texts."""
    searched: int
    """Passages that the store was searched for."""
    unsearched: int
    """Texts that have none among these: too short, too many, or like texts that stay."""
    found: list[Found]
    """Empty: proven."""


def forget(
    name: str, config: Config, chosen: Sequence[tuple[str, str]], *, dry: bool = False, canaries: Sequence[str] = ()
) -> ForgetSummary:
    """Forget the documents of a corpus that match.

    Args:
        name: of the corpus.
        config: the store.
        chosen: fields (doc_id, source, title) and patterns (``*``, ``?``); a document that matches any goes, with all
            its versions.
        dry: only say what would go.
        canaries: further texts that the store is searched for. With some, it can be repeated after the documents are
            gone: what was made of any forgotten text since is erased as well.

    Raises:
        UsageError: there is no such corpus or document, or a part of the store cannot be erased.
        RunningError: a run is using the store.
        MemagentError: a file of a run is damaged.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    _check(chosen, canaries)
    corpus.store.check_erasable()
    if dry:
        return _summary(_journal(corpus, chosen))
    with alone(corpus.store, new_run_id()):
        finished = _finish_interrupted(corpus, chosen, canaries)
        if finished is not None:
            return finished
        cleaned = forgotten(corpus) if canaries and not _matching(corpus, chosen).num_rows else ()
        journal = _again(corpus, cleaned, canaries) if cleaned else _journal(corpus, chosen)
        write_down(corpus.store, journal)
        erase(corpus.store, journal)
        return _finish(corpus.store, journal, canaries)


def _check(chosen: Sequence[tuple[str, str]], canaries: Sequence[str]) -> None:
    if not chosen or not {field for field, _ in chosen} <= set(_CHOSEN):
        raise UsageError("documents are chosen by document=PATTERN, source=PATTERN, title=PATTERN")
    for canary in canaries:
        if canary != mended(canary):
            raise UsageError(f"the canary {canary!r} is no text: give it as UTF-8")


def _finish_interrupted(
    corpus: Corpus, chosen: Sequence[tuple[str, str]], canaries: Sequence[str]
) -> ForgetSummary | None:
    """Finish a forgetting that was interrupted; return what became of it, if nothing else was chosen now."""
    journal = interrupted(corpus.store)
    if journal is None:
        return None
    _log.warning("a forgetting in %s was interrupted: it is finished first", journal["corpus"])
    _add_copies(corpus.store, journal)
    complete(corpus.store, journal)
    write_down(corpus.store, journal)
    erase(corpus.store, journal)
    is_this = journal["corpus"] == corpus.name and not _matching(corpus, chosen).num_rows
    finished = _finish(corpus.store, journal, canaries if is_this else ())
    if is_this:
        return finished
    for found in finished["found"]:
        _log.warning("%r of %s is still in %s", found["passage"], journal["corpus"], found["file"])
    return None


def _again(corpus: Corpus, hashes: Collection[str], canaries: Sequence[str]) -> ForgetJournal:
    """Return all that was forgotten before: what was made of it since goes as well. Its texts are gone: copies of
    unknown origin are told by the canaries.
    """
    erased = {corpus.name: _chosen(corpus, set(), set(hashes))}
    journal: ForgetJournal = {"corpus": corpus.name, "erased": erased, "passages": [], "unsearched": 0}
    _add_copies(corpus.store, journal, canaries)
    return journal


def _journal(corpus: Corpus, chosen: Sequence[tuple[str, str]]) -> ForgetJournal:
    """Find what is to go: from the corpus, and from those of evaluations on its questions."""
    mine = _matching(corpus, chosen)
    if not mine.num_rows:
        raise UsageError(f"no document of {corpus.name} matches {', '.join(f'{_CHOSEN[of]}={p}' for of, p in chosen)}")
    forgetting = _choose(corpus, mine)
    hashes = set(forgetting["content_hashes"])
    passages, unsearched = _passages(corpus, hashes)
    erased = {corpus.name: forgetting}
    journal: ForgetJournal = {"corpus": corpus.name, "erased": erased, "passages": passages, "unsearched": unsearched}
    _add_copies(corpus.store, journal)
    return journal


def _add_copies(store: Store, journal: ForgetJournal, canaries: Sequence[str] = ()) -> None:
    """Add the copies of the texts that are to go, and of those that went, in the corpora of evaluations."""
    passages = (*journal["passages"], *canaries)
    mine, documents = Corpus(store, journal["corpus"]), Table(store, "documents")
    corpora = [Corpus(store, name) for name in documents.corpora() if name != mine.name]
    made = [corpus for corpus in corpora if corpus.name.startswith(_EVALUATED) and not sources_of(corpus)]
    if not made:
        return
    hashes = set(journal["erased"][mine.name]["content_hashes"])
    origins = {corpus.name: _origins(corpus) for corpus in made}
    named = one_of("content_hash", {text for of in origins.values() for texts in of.values() for text in texts})
    others = [documents.read(one.name, ["content_hash"], named) for one in (mine, *corpora) if one not in made]
    stays = {text for table in others for text in table["content_hash"].to_pylist()} - hashes
    shingles = Shingles(text for _, text in document_texts(mine, hashes))

    def is_copy(text: str) -> bool:
        return any(passage in text for passage in passages) or shingles.are_in(text)

    for corpus in made:
        of = origins[corpus.name]
        left = {doc_id for doc_id, texts in of.items() if texts <= stays}
        copied = {doc_id for doc_id, texts in of.items() if not hashes.isdisjoint(texts)}
        copies = _copies(corpus, hashes, copied, left, is_copy)
        if copies.num_rows:
            new = _choose(corpus, copies)
            known = journal["erased"].setdefault(corpus.name, new)
            known["doc_ids"] = sorted({*known["doc_ids"], *new["doc_ids"]})
            known["content_hashes"] = sorted({*known["content_hashes"], *new["content_hashes"]})
            samples = Table(store, "sources").read(corpus.name, ["source"], one_of("doc_id", new["doc_ids"]))
            known["sources"] = sorted({*known["sources"], *new["sources"], *samples["source"].to_pylist()})


def _choose(corpus: Corpus, mine: pa.Table) -> Forgetting:
    """Find what is to go with all versions of some documents."""
    chosen = _chosen(corpus, set(mine["doc_id"].to_pylist()), set(mine["content_hash"].to_pylist()))
    return {**chosen, "sources": sorted(set(mine["source"].to_pylist()))}


def _chosen(corpus: Corpus, doc_ids: set[str], hashes: set[str]) -> Forgetting:
    stays = hashes & _hashes_of_others(corpus, doc_ids)
    erased = erased_with(corpus, doc_ids, hashes - stays)
    qa = training_rows(corpus, erased)
    return {
        "doc_ids": sorted(doc_ids),
        "content_hashes": sorted(erased.content_hashes),
        "reading_ids": sorted(erased.reading_ids),
        "sources": [],
        "qa_ids": [row["qa_id"] for row in qa],
        "parts": segment_parts(corpus, erased),
        "texts": len(hashes - stays),
        "kept_texts": len(stays),
        "policies": _learners(corpus, qa),
        "rows": 0,
    }


def _finish(store: Store, journal: ForgetJournal, canaries: Sequence[str]) -> ForgetSummary:
    count_forgetting(Corpus(store, journal["corpus"]))
    follow_forgettings(store)
    searched = [*journal["passages"], *canaries]
    found = find_texts(store, searched, but=store.path(JOURNAL))
    summary = _summary(journal)
    summary["found"] = [{"file": file, "passage": text} for file, text in found]
    summary["searched"] = len(searched)
    written_off(store)
    return summary


def _summary(journal: ForgetJournal) -> ForgetSummary:
    erased = journal["erased"].values()
    mine = journal["erased"][journal["corpus"]]
    return {
        "corpus": journal["corpus"],
        "documents": mine["doc_ids"][:1_000],
        "documents_count": len(mine["doc_ids"]),
        "texts": mine["texts"],
        "kept_texts": mine["kept_texts"],
        "readings": sum(len(one["reading_ids"]) for one in erased),
        "rows": sum(one["rows"] for one in erased),
        "training_rows": len(mine["qa_ids"]),
        "policies": mine["policies"],
        "evaluated": sorted(journal["erased"].keys() - {journal["corpus"]}),
        "searched": 0,
        "unsearched": journal["unsearched"],
        "found": [],
    }


def _matching(corpus: Corpus, chosen: Sequence[tuple[str, str]]) -> pa.Table:
    """Return all versions of the documents of which any version matches."""
    table = _versions(corpus)
    mask = [False] * table.num_rows
    for field, pattern in chosen:
        fits = re.compile(translate(pattern.replace("[", "[[]"))).match  # names of files have brackets
        values = table[field].to_pylist()
        mask = [old or fits(value or "") is not None for old, value in zip(mask, values, strict=True)]
    return _of_documents(table, pa.array(mask, pa.bool_()))


def _origins(corpus: Corpus) -> dict[str, set[str]]:
    """Return the content hashes of the texts that the documents of an evaluation were made of (`Sample.origins`)."""
    origins = defaultdict[str, set[str]](set)
    for name in ("documents", "sources"):
        for row in Table(corpus.store, name).read(corpus.name, ["doc_id", "source_stamp"]).to_pylist():
            origins[row["doc_id"]].update(row["source_stamp"].split())
    return {doc_id: texts for doc_id, texts in origins.items() if texts}


def _copies(
    corpus: Corpus, hashes: set[str], copied: set[str], left: set[str], is_copy: Callable[[str], bool]
) -> pa.Table:
    """Return all versions of an evaluation's documents that were made of texts that go (`hashes`).

    Documents that are known to be `copied` from them are; those `left` are made of others alone, and are none however
    much they have in common. The text decides of the rest.
    """
    table = _versions(corpus)
    rows = list(zip(table["doc_id"].to_pylist(), table["content_hash"].to_pylist(), strict=True))
    unknown = [text for doc_id, text in rows if doc_id not in left]
    copies = hashes.union(text for text, words in document_texts(corpus, unknown) if is_copy(words))
    return _of_documents(table, pa.array([text in copies or doc_id in copied for doc_id, text in rows], pa.bool_()))


def _versions(corpus: Corpus) -> pa.Table:
    return Table(corpus.store, "documents").read(corpus.name, [*_CHOSEN, "content_hash"])


def _of_documents(table: pa.Table, mask: pa.Array) -> pa.Table:
    """Return all rows of the documents that have a row in the mask."""
    doc_ids = table.filter(mask)["doc_id"].to_pylist()
    return table.filter(pc.is_in(table["doc_id"], pa.array(doc_ids, pa.string())))


def _hashes_of_others(corpus: Corpus, doc_ids: Collection[str]) -> set[str]:
    """Return the texts of the documents that stay: as they are now, not as they were or as deleted ones were."""
    table = current_documents(corpus, ["doc_id", "content_hash"], ordered=False)
    chosen = pc.is_in(table["doc_id"], value_set=pa.array(sorted(doc_ids), pa.string()))
    return set(table.filter(pc.invert(chosen))["content_hash"].to_pylist())


def _learners(corpus: Corpus, qa: Sequence[QaRow]) -> list[str]:
    since = min((row["harvested_at"] for row in qa), default=None)
    if since is None:
        return []
    rows = policies(corpus.store)
    return [row["policy_id"] for row in rows if row["data_version"] is not None and row["made_at"] >= since]


def _passages(corpus: Corpus, hashes: Collection[str]) -> tuple[list[str], int]:
    """Return passages to search for, of as many texts as may be; and of how many texts there is none.

    Two that follow each other: a segment's end may go through one of them. No text that stays has them as well.
    """
    found: dict[str, str] = {}
    texts = 0
    places = max(1, _CANDIDATES // max(1, len(hashes)))
    for name, text in document_texts(corpus, hashes):
        texts += 1
        if len(found) < _CANDIDATES:
            step = max(_PASSAGE, len(text) // places)
            starts = range(0, min(len(text), places * step), step)
            pairs = (text[at + more : at + more + _PASSAGE] for at in starts for more in (0, _PASSAGE))
            found |= {passage: name for passage in pairs if len(passage.strip()) >= _PASSAGE // 2}
    stored = set(Table(corpus.store, "documents").read(corpus.name, ["content_hash"])["content_hash"].to_pylist())
    for _, text in document_texts(corpus, stored.difference(hashes)):
        found = {passage: name for passage, name in found.items() if passage not in text}
    of: dict[str, list[str]] = {}
    for passage, name in found.items():
        of.setdefault(name, []).append(passage)
    chosen = [passage for mine in of.values() for passage in mine[:: -(-len(mine) // _OF_A_TEXT)]][:_SEARCHED]
    return chosen, texts - len({found[passage] for passage in chosen})
