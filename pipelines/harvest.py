"""Harvest: turn answers into training rows. The stages put together, top to bottom."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store.claims import used
from infra.store.documents import check_documents, current_documents
from infra.store.feedback import verdicts
from infra.store.location import Corpus, Store
from infra.store.qa import CorpusIndex, HarvestSummary, qa_version, read_qa, write_qa
from infra.store.runs import run_id_or_new, run_ids, write_run
from infra.store.schemas import now
from infra.store.segments import segmented
from memagent.config import Config
from memagent.errors import UsageError
from memagent.quality.curation import SPLITS, TRUST, Qa, gather, split_of
from memagent.records import Progress, Question
from pipelines.ask import AskRequest, run_readings
from pipelines.runs import Recorder
from pipelines.stages.collect_qa import KINDS, agreed_rows, asked, feedback_rows, gold_rows, load_answers
from pipelines.stages.segment import segment
from pipelines.stages.write_questions import choose, generate


@dataclass(frozen=True, slots=True)
class HarvestOptions:
    """Where training rows come from besides gold answers and feedback, and which rows are left out."""

    samples: int = 0
    """Sampled readings of each question without gold; answers on which they agree become rows."""
    questions: int = 0
    """Segments from which the model writes a question."""
    exclude: tuple[str, ...] = ("sensitive",)
    """Tags of documents that are not trained on."""
    least_share: float = 0.7
    """Share of the sampled readings that must agree."""


NOTHING = "nothing was answered with gold yet"
"""How the message of `NothingToHarvest` begins."""


class NothingToHarvest(UsageError):
    """A corpus has neither gold answers nor verdicts, nor rows from before."""


def harvest(
    name: str,
    config: Config,
    options: HarvestOptions | None = None,
    run_id: str | None = None,
    show: Progress | None = None,
) -> HarvestSummary:
    """Update the `qa` table of a corpus from answers and feedback; return the summary.

    Rows of earlier harvests are judged again and removed when they no longer qualify. `config` has the policy and how
    it reads, for sampled readings and written questions.

    Raises:
        UsageError: the corpus is empty, or there is nothing to harvest.
        RunningError: a run has the whole store for itself, and `wait` is off.
        MemagentError: the engine cannot be started.
    """
    options = options or HarvestOptions()
    corpus, started, run_id = Corpus(Store(config.store), name), now(), run_id_or_new(run_id)
    store = corpus.store
    check_documents(corpus)
    recorder = Recorder(store, run_id, show)
    with used(corpus, run_id, wait=config.wait, show=recorder.show):
        summary = _harvest(corpus, config, options, run_id, recorder)
        recorder.stage("done")
        summary["seconds"] = round((now() - started).total_seconds(), 2)
        write_run(store, summary, started, config.public())
    return summary


def _harvest(
    corpus: Corpus, config: Config, options: HarvestOptions, run_id: str, recorder: Recorder
) -> HarvestSummary:
    name, store, index = corpus.name, corpus.store, CorpusIndex(corpus)
    refused: Counter[str] = Counter()
    with lazy_ray(config.ray):
        recorder.stage("collect")
        runs = run_ids(corpus, KINDS)
        rows = asked(store, runs, gold=True)
        fresh = gold_rows(rows, load_answers(corpus, (row["reading_id"] for row in rows)))
        if options.samples:
            recorder.stage("sample")
            questions = without_gold(corpus, runs, fresh, index=index, options=options)
            fresh += sample(corpus, config, questions, options.samples, run_id=run_id, show=recorder.show)
        if options.questions:
            recorder.stage("generate")
            written, refused = write(corpus, config, index, options, run_id=run_id, recorder=recorder)
            fresh += written
    recorder.stage("choose")
    if not (fresh or refused or verdicts(corpus) or read_qa(store, corpus.name)):
        raise NothingToHarvest(
            f"{NOTHING}: memagent ask {name} --questions FILE with answers in it, "
            "memagent feedback FILE, or harvest with --agreement N or --generate N"
        )
    return settle(corpus, fresh, run_id, options=options, refused=refused)


def without_gold(
    corpus: Corpus, runs: Sequence[str], gold: Sequence[Qa], index: CorpusIndex, options: HarvestOptions
) -> list[Question]:
    """Return the questions that runs asked about single documents and that have no gold answer."""
    answered = {row.qa_id for row in gold}
    documents: dict[str, dict[str, None]] = defaultdict(dict)
    question_ids: dict[str, str] = {}
    for row in asked(corpus.store, runs, gold=False):
        qa = index.place(Qa(row["question"], (), tuple(row["stream"]), documents=(), source="agreement"))
        fit = qa.documents and not set(options.exclude) & set(qa.tags) and qa.qa_id not in answered
        if row["scope"] == "document" and row["doc_id"] in index.current and fit:
            documents[qa.question][row["doc_id"]] = None
            question_ids[qa.question] = row["question_id"]
    return [Question(question_ids[text], text, tuple(doc_ids)) for text, doc_ids in documents.items()]


def sample(
    corpus: Corpus,
    config: Config,
    questions: Sequence[Question],
    samples: int,
    run_id: str,
    show: Progress | None = None,
) -> list[Qa]:
    """Read questions `samples` times at temperature 1, and make rows of the answers that agree.

    Each sampling is a run of kind ``agreement``; readings that exist already are not repeated.
    """
    runs = []
    for seed in range(1, samples + 1) if questions else ():
        reading = {**config.reading, "temperature": 1.0, "seed": seed}
        settings = config.model_copy(update={"reading": reading})
        summary = run_readings(
            AskRequest(corpus.name, questions, settings, kind="agreement", run_id=f"{run_id}-s{seed}"), show
        )
        runs.append(summary["run_id"])
    rows = asked(corpus.store, runs)
    return agreed_rows(rows, load_answers(corpus, (row["reading_id"] for row in rows)))


def write(
    corpus: Corpus, config: Config, index: CorpusIndex, options: HarvestOptions, run_id: str, recorder: Recorder
) -> tuple[list[Qa], Counter[str]]:
    """Have the model write questions from segments that have none yet; return rows, and refusals by reason."""
    store, reader = corpus.store, ReaderSpec(config)
    hashes = current_documents(corpus, ["content_hash"])["content_hash"].to_pylist()
    hashes = {name for name in hashes if not index.tags(name) & set(options.exclude)}
    segment(corpus, reader, run_id)
    used = {key for row in read_qa(store, corpus.name) if row.source == "generated" for key in row.evidence}
    segments = segmented(corpus, reader.tokenizer, reader.reading, hashes=hashes)
    chosen = choose(segments, options.questions, run_id, used)
    return generate(store, reader, config, chosen=chosen, progress=recorder)


def settle(
    corpus: Corpus,
    fresh: Sequence[Qa],
    run_id: str,
    options: HarvestOptions | None = None,
    refused: Mapping[str, int] | None = None,
) -> HarvestSummary:
    """Choose among new rows, feedback and the stored rows, and replace the `qa` table by the choice.

    Returns:
        The summary: training rows by source and split, changes, and dropped rows by reason.
    """
    options = options or HarvestOptions()
    corrected, rejected, disputed = feedback_rows(verdicts(corpus))
    new = [*fresh, *corrected]
    new_keys = {(row.qa_id, row.source) for row in new}
    there = read_qa(corpus.store, corpus.name)
    stored = [
        row
        for row in there
        # What people said is all there is of feedback: a verdict that was withdrawn has left a row and nothing else.
        if (row.qa_id, row.source) not in new_keys and (row.source != "feedback" or row.qa_id in rejected)
    ]
    index = CorpusIndex(corpus)
    chosen = gather(map(index.place, [*new, *stored]), options.exclude, options.least_share, rejected, disputed)
    written = write_qa(corpus, chosen.kept, run_id, {row.qa_id for row in there})
    sources = Counter(row.source for row in chosen.kept)
    splits = Counter(split_of(row.documents) for row in chosen.kept)
    return {
        "run_id": run_id,
        "corpus": corpus.name,
        "kind": "harvest",
        "candidates": len(new) + len(stored) + sum((refused or {}).values()),
        "rows": len(chosen.kept),
        "new": written.new,
        "changed": written.changed,
        "removed": written.removed,
        "by_source": {source: sources[source] for source in TRUST if sources[source]},
        "by_split": {split: splits[split] for split in SPLITS if splits[split]},
        "dropped": dict(sorted((Counter(chosen.reasons) + Counter(refused or {})).items())),
        "qa_version": qa_version(corpus.store),
    }
