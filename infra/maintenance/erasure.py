"""Forgettings: what is to be erased is written down first, so that one that is interrupted can be finished.

    forgetting.json     a `Journal`, until everything in it is gone

All of `erase` can be repeated.
"""

import json
import re
from datetime import timedelta
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.maintenance.lineage import (
    Erased,
    erase_from_part,
    erase_rows,
    erased_with,
    runs_of,
    segment_parts,
    training_rows,
    unknown_parts,
)
from infra.models import cache_folder
from infra.store.corpora import check_name, forgotten
from infra.store.delta import Table
from infra.store.documents import current_documents, current_sources
from infra.store.location import Corpus, Store
from infra.store.runs import forget_rollups
from infra.store.schemas import TABLES, now
from memagent.errors import MemagentError, UsageError
from memagent.rl.dataset import dataset_name

JOURNAL = "forgetting.json"
PROMOTIONS, TRAININGS = "promotions", "training"
"""Folders of the question files of promotion checks, and of training runs."""
_RUN_FILES = ("report.html", "evaluation.html", "log.txt", "results.parquet", "answers.parquet")
_SET_ASIDE = re.compile(r"(?:\.parquet|/_delta_log/[^/]+)(?:\.\d+)?\Z")
_CHECKED = re.compile(rf"/{PROMOTIONS}/[0-9a-f]{{12}}/[^/]+\Z")
_ROLLOUTS = re.compile(rf"/{TRAININGS}/[^/]+/rollouts/step-\d+\.jsonl\.gz\Z")
"""What memagent writes there: others may have files in folders of these names."""
_ASIDE, _HEARTBEAT = re.compile(r"/\.[^/]+\.[0-9a-f]{8}\.tmp\Z|/_delta_log/"), "/.heartbeat.json."
"""Of files that were being written when their writer was killed; runs that wait write heartbeats now."""
_NAMED, _MADE_UP = "named.json", "needles"
"""What a training was made of (`pipelines.training.settings`), and the data that are of no documents by themselves."""


class Forgetting(TypedDict):
    """What is to be erased from a corpus."""

    doc_ids: list[str]
    content_hashes: list[str]
    """Of all versions of the documents, and of the archives that they are part of."""
    reading_ids: list[str]
    sources: list[str]
    qa_ids: list[str]
    parts: list[str]
    """Parts of segments that have any of it, whole."""
    texts: int
    kept_texts: int
    """Texts that documents which stay have as well: they stay."""
    policies: list[str]
    """Versions that may have learnt from any of it."""
    rows: int
    """Rows that were taken out of turn log, plans and streams so far."""


class ForgetJournal(TypedDict):
    """A forgetting, from when it begins to change the store until its end."""

    corpus: str
    """Whose documents were chosen."""
    erased: dict[str, Forgetting]
    """By corpus: that one, and those of evaluations that were made of its questions."""
    passages: list[str]
    """What the store is searched for in the end."""
    unsearched: int
    """Texts of which there is no passage."""


def write_down(store: Store, journal: ForgetJournal) -> None:
    """Keep a forgetting until it is done (`written_off`)."""
    store.write_bytes(json.dumps(journal).encode(), JOURNAL)


def interrupted(store: Store) -> ForgetJournal | None:
    """Return the forgetting that was interrupted, if there is one.

    Raises MemagentError: what is written of it is damaged.
    """
    try:
        journal: ForgetJournal = json.loads(store.read_bytes(JOURNAL))
        erased = journal["erased"]
        whole = all(check_name(name) and _is_whole(one) for name, one in erased.items()) and _texts(journal["passages"])
        if whole and journal["corpus"] in erased and isinstance(journal["unsearched"], int):
            return journal
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        pass
    raise MemagentError(
        f"{JOURNAL} of {store.url} is damaged. It says what an interrupted forgetting was about: delete the file, and "
        "give that forgetting again"
    )


def _is_whole(one: Forgetting) -> bool:
    """Whether what is to be erased from a corpus is as it was written: names of its own files, lists, and counts."""
    lists = (one["doc_ids"], one["content_hashes"], one["reading_ids"], one["sources"], one["qa_ids"], one["policies"])
    counts = (one["texts"], one["kept_texts"], one["rows"])
    files = _texts(one["parts"]) and all(part.startswith("segments/") for part in one["parts"])
    named = all("/" not in each for each in one["content_hashes"])
    return files and all(map(_texts, lists)) and named and all(isinstance(count, int) for count in counts)


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def written_off(store: Store) -> None:
    """Note that a forgetting is done: it has passages of what was forgotten, so no version of it may stay."""
    store.erase_versions(JOURNAL)
    if store.exists(JOURNAL):
        store.delete(store.path(JOURNAL))


def erase(store: Store, journal: ForgetJournal) -> None:
    """Erase rows, parts, files of runs and earlier versions. Nothing else may use the store (`claims.alone`).

    Raises MemagentError: a file of a run is damaged.
    """
    forgotten(Corpus(store, journal["corpus"]), journal["erased"][journal["corpus"]]["content_hashes"])
    for name, forgetting in journal["erased"].items():
        corpus = Corpus(store, name)
        _erase_rows(corpus, forgetting)
        # After the rows: a run that begins after a kill must not miss them.
        for path in (*map(store.path, forgetting["parts"]), *unknown_parts(corpus)):
            store.delete(path)
        forgetting["rows"] += _erase_from_runs(corpus, forgetting)
        forget_rollups(corpus)
    _delete_copies(Corpus(store, journal["corpus"]))
    for table in TABLES:
        Table(store, table).drop_versions(timedelta(0))
    store.erase_versions()


def complete(store: Store, journal: ForgetJournal) -> None:
    """Add what was made of the texts since a forgetting was interrupted."""
    for name, forgetting in journal["erased"].items():
        corpus = Corpus(store, name)
        erased = erased_with(corpus, forgetting["doc_ids"], forgetting["content_hashes"])
        qa_ids = [row["qa_id"] for row in training_rows(corpus, erased)]
        forgetting["content_hashes"] = sorted(erased.content_hashes)
        forgetting["reading_ids"] = sorted(erased.reading_ids.union(forgetting["reading_ids"]))
        forgetting["qa_ids"] = sorted({*forgetting["qa_ids"], *qa_ids})
        forgetting["parts"] = sorted({*forgetting["parts"], *segment_parts(corpus, erased)})


def _delete_copies(corpus: Corpus) -> None:
    """Delete what may hold texts of documents and can be made again, is kept to be looked at, or is half written.

    Recorded rollouts of trainings on documents have them as token ids; the question files of promotion checks have them
    whole.
    """
    store = corpus.store
    aside, written = store.path("damaged", ""), store.sizes(suffix=".tmp", hidden=True)
    bad = filter(_SET_ASIDE.search, store.list("damaged", suffix=""))
    gone = [path for path in bad if store.has_folder(store.path(path.removeprefix(aside)))]
    gone += filter(_CHECKED.search, store.list(PROMOTIONS, suffix=""))
    gone += [path for path in written if _HEARTBEAT not in path and _ASIDE.search(path)]
    recorded = list(filter(_ROLLOUTS.search, store.list(TRAININGS, suffix=".gz")))
    trainings = {path: path.removeprefix(store.path(TRAININGS)).split("/")[1] for path in recorded}
    made_up = {run for run in trainings.values() if _is_made_up(store, run)}
    gone += [path for path, run in trainings.items() if run not in made_up]
    for path in gone:
        store.delete(path)
    local = Store(str(cache_folder()))
    for path in local.list(PROMOTIONS, suffix=""):
        local.delete(path)


def _is_made_up(store: Store, training: str) -> bool:
    """Whether a training has no text of any document."""
    try:
        made_of = json.loads(store.read_bytes(TRAININGS, training, _NAMED))
        return not made_of["text"] and {*map(dataset_name, made_of["data"])} == {_MADE_UP}
    except (OSError, ValueError, LookupError, TypeError):  # nobody can say
        return False


def _erase_rows(corpus: Corpus, forgetting: Forgetting) -> None:
    for table, column, values in (
        ("texts", "content_hash", forgetting["content_hashes"]),
        ("documents", "doc_id", forgetting["doc_ids"]),
        # Documents that are gone had these texts, and those that stay may have had them once.
        ("documents", "content_hash", forgetting["content_hashes"]),
        ("sources", "source", _mark_shared_sources(corpus, forgetting)),
        ("segmented", "part", forgetting["parts"]),  # the other documents of the part are segmented again
        ("answers", "reading_id", forgetting["reading_ids"]),
        ("feedback", "reading_id", forgetting["reading_ids"]),
        ("qa", "qa_id", forgetting["qa_ids"]),
        ("quarantine", "item", _items(corpus, forgetting)),
    ):
        erase_rows(corpus, table, column, values)


def _mark_shared_sources(corpus: Corpus, forgetting: Forgetting) -> set[str]:
    """Mark sources that have other documents as not read, and return those that have none.

    The next ingest compares a marked source with its documents; one without a row it would take for new.
    """
    documents, known = current_documents(corpus, ["source", "doc_id"], ordered=False), current_sources(corpus)
    others = pc.invert(pc.is_in(documents["doc_id"], value_set=pa.array(forgetting["doc_ids"], pa.string())))
    kept = set(documents.filter(others)["source"].to_pylist()).intersection(forgetting["sources"])
    rows = known.filter(pc.is_in(known["source"], value_set=pa.array(sorted(kept), pa.string()))).to_pylist()
    Table(corpus.store, "sources").append(
        {**row, "source_stamp": "", "documents": 0, "seen_at": max(now(), row["seen_at"] + timedelta(microseconds=1))}
        for row in rows
    )
    return set(forgetting["sources"]) - kept


def _items(corpus: Corpus, forgetting: Forgetting) -> set[str]:
    """Return the items of the quarantine that are about any of it."""
    items = Table(corpus.store, "quarantine").read(corpus.name, ["item"])["item"].to_pylist()
    sources = set(forgetting["sources"])
    whole = {*forgetting["doc_ids"], *sources}
    return {item for item in items if item.partition(" ? ")[0] in whole or item.partition("#")[0] in sources}


def _erase_from_runs(corpus: Corpus, forgetting: Forgetting) -> int:
    store, name = corpus.store, corpus.name
    erased = erased_of(forgetting)
    rows = 0
    runs = runs_of(corpus)
    for folder in (("turns", name), ("streams", name), *(("runs", run_id) for run_id in runs)):
        for path in store.list(*folder):
            rows += erase_from_part(store, path, erased, keep_damaged=folder[0] == "turns")
    for content_hash in erased.content_hashes:
        store.delete(store.path("streams", name, content_hash[:2], f"{content_hash}.parquet"))
    for run_id in runs:
        for file in _RUN_FILES:
            store.delete(store.path("runs", run_id, file))
    return rows


def erased_of(forgetting: Forgetting) -> Erased:
    """Return what a row may have that is to go."""
    hashes, readings = forgetting["content_hashes"], forgetting["reading_ids"]
    return Erased(frozenset(forgetting["doc_ids"]), frozenset(hashes), frozenset(readings))
