"""Samples: the texts of an evaluation become documents of a corpus, a job over ranges of samples.

From there on an evaluation is bulk answering: the same reading, log, resumption and report.
"""

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

from infra.cluster.jobs import run_job
from infra.readers import ReaderSpec
from infra.store.documents import DocumentWriter, current_sources
from infra.store.location import Corpus, Store
from infra.store.schemas import NewDocument, now
from memagent.errors import UsageError
from memagent.evaluation.ruler import write_jsonl
from memagent.evaluation.suites import SampleGroup, Suite
from memagent.evaluation.texts import Sample, load_texts
from memagent.reading.tokens import Tokenizer
from memagent.records import Question, text_hash

_SOURCE = "sample:"
_TITLE_CHARS = 200
_BLOCK_TOKENS = 4_000_000
"""Tokens that one task generates, which takes a few seconds."""
_WHOLE = 1_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample whose text is a document of the corpus."""

    sample: Sample
    """Without its text: `pieces` yields nothing."""
    doc_id: str

    def question(self) -> Question:
        """Return it as a question of its document."""
        return Question(self.sample.sample_id, self.sample.question, (self.doc_id,), self.sample.answers)


@lru_cache(maxsize=2)
def haystack(paths: tuple[str, ...]) -> list[str]:
    """Return the texts that needles are planted in.

    By default those of the installed packages: their readmes and licences are text that any machine has.
    """
    return load_texts([Path(path) for path in paths or (sysconfig.get_paths()["purelib"],)])


def take(
    store: Store, suite: Suite, texts: tuple[str, ...], reader: ReaderSpec, run_id: str
) -> tuple[str, list[Taken]]:
    """Write the documents of a suite's samples that are not there yet; return the corpus and all samples.

    Needs a Ray session if they are long. Resumable: samples that have a row in `sources` are done.

    Raises UsageError: the suite cannot be made, or a file of it is malformed.
    """
    corpus = suite.corpus(reader.tokenizer, haystack(texts) if suite.is_made else [])
    groups = suite.groups()
    ranges = [(index, start, stop) for index, group in enumerate(groups) for start, stop in _cuts(suite, group)]
    make = partial(_make, corpus=Corpus(store, corpus), run_id=run_id, suite=suite, texts=texts, reader=reader)
    few = suite.n * sum(group.length for group in groups) <= _BLOCK_TOKENS
    made = dict(run_job(make, ranges, store, local=few))
    return corpus, [one for part in ranges for one in made[part]]


def _cuts(suite: Suite, group: SampleGroup) -> list[tuple[int, int]]:
    """Cut a group into ranges of samples; groups that are read from files, or need each other, are one."""
    if suite.name in ("contracts", "files") or suite.control == "wrong-document":
        return [(0, _WHOLE)]
    size = max(1, min(suite.n, _BLOCK_TOKENS // max(1, group.length)))
    return [(start, min(suite.n, start + size)) for start in range(0, suite.n, size)]


def _make(
    part: tuple[int, int, int], corpus: Corpus, run_id: str, suite: Suite, texts: tuple[str, ...], reader: ReaderSpec
) -> tuple[tuple[int, int, int], list[Taken]]:
    """Make the samples of a group's range (group, first, stop), and commit their texts; return them with the range."""
    number, start, stop = part
    known = haystack(texts) if suite.is_made else []
    samples = islice(suite.groups()[number].samples(reader.tokenizer, known), start, stop)
    return part, [
        Taken(replace(sample, pieces=partial(iter, ())), name) for sample, name in _written(corpus, run_id, samples)
    ]


def _written(corpus: Corpus, run_id: str, samples: Iterator[Sample]) -> Iterator[tuple[Sample, str]]:
    """Yield each sample with its document, and write those that are not there."""
    known = {row["source"]: row["doc_id"] for row in current_sources(corpus).to_pylist()}
    there = set(known.values())
    writer = DocumentWriter(corpus, run_id, written_at := now())
    for sample in samples:
        source = f"{_SOURCE}{sample.sample_id}"
        if source in known:
            yield sample, known[source]
            continue
        text = sample.text()
        doc_id = text_hash(text)  # samples on one text share its document
        stamp = " ".join(dict.fromkeys(sample.origins)) or doc_id  # `forget` finds copies by it
        if doc_id not in there:
            there.add(doc_id)
            row = _document(sample, source, doc_id, text=text, first_seen=written_at)
            writer.document({**row, "source_stamp": stamp}, text)
        writer.source(source, doc_id, stamp, state="read", documents=1)
        yield sample, doc_id
    writer.commit()


def _document(sample: Sample, source: str, doc_id: str, text: str, first_seen: datetime) -> NewDocument:
    return {
        "doc_id": doc_id,
        "content_hash": doc_id,
        "title": str(sample.about.get("document") or sample.sample_id)[:_TITLE_CHARS],
        "source": source,
        "source_stamp": doc_id,
        "media_type": "text/plain",
        "encoding": "utf-8",
        "size_bytes": len(text.encode("utf-8", "surrogatepass")),
        "chars": len(text),
        "state": "present",
        "first_seen": first_seen,
        "warnings": None,
    }


def write_files(suite: Suite, texts: tuple[str, ...], tokenizer: Tokenizer, folder: Path) -> list[tuple[Path, int]]:
    """Write a made suite as files in RULER's layout and format; return each with its number of samples.

    Raises UsageError: the suite is not made, or cannot be.
    """
    if not suite.is_made:
        raise UsageError(f"--write is for suites that are made (needles, ruler): {suite.name} is read from files")
    written = []
    for group in suite.groups():
        path = folder / str(group.length) / "data" / group.kind / "validation.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        written.append((path, write_jsonl(group.samples(tokenizer, haystack(texts)), path)))
    return written


def questions(taken: Sequence[Taken]) -> list[Question]:
    """Return the questions to ask."""
    return [sample.question() for sample in taken]
