"""Harvest: what was answered becomes rows that teach. The stages put together, top to bottom."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from infra.cluster.session import ray_session
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.delta import now
from infra.tables.documents import current_documents
from infra.tables.qa import CorpusIndex, qa_version, read_qa, verdicts, write_qa
from infra.tables.runs import HarvestSummary, run_ids, write_run
from infra.tables.segments import segmented
from memagent.config import Config
from memagent.curation import SPLITS, TRUST, Qa, gather, split_of
from memagent.errors import UsageError
from memagent.records import Question
from pipelines.ask import ask
from pipelines.runs import Progress, Recorder, new_run_id
from pipelines.stages.collect_qa import KINDS, agreed_rows, asked, feedback_rows, gold_rows, load_answers
from pipelines.stages.segment import segment
from pipelines.stages.write_questions import choose, generate

EXCLUDED = ("sensitive",)
LEAST_SHARE = 0.7


def harvest(
    name: str,
    config: Config,
    *,
    samples: int = 0,
    questions: int = 0,
    exclude: Collection[str] = EXCLUDED,
    least_share: float = LEAST_SHARE,
    run_id: str | None = None,
    show: Progress | None = None,
) -> HarvestSummary:
    """Bring the `qa` table of a corpus up to date with what was asked, answered and said; return the summary.

    The table is what teaches now: rows of earlier harvests are judged again, and leave it when they no longer may.

    Args:
        name: the corpus.
        config: the policy and how it reads, for `samples` and `questions`.
        samples: sampled readings of each question without gold, whose agreement makes a row.
        questions: segments that the model writes a question from.
        exclude: tags whose documents do not teach.
        least_share: of the sampled readings that must agree.
        run_id: name of the run.
        show: is given the counts as they come.

    Raises:
        UsageError: the corpus is empty, or there is nothing to harvest at all.
        MemagentError: the engine cannot be started.
    """
    corpus, started, run_id = Corpus(Store(config.store), name), now(), run_id or new_run_id()
    store = corpus.store
    if not current_documents(corpus, ["doc_id"]).num_rows:
        raise UsageError(f"corpus {name!r} has no documents in {store.url}: memagent ingest {name} FOLDER")
    shelf, recorder = CorpusIndex(corpus), Recorder(store, run_id, show)
    refused: Counter[str] = Counter()
    with ray_session(config.ray):
        recorder.stage("collect")
        runs = run_ids(corpus, KINDS)
        rows = asked(store, runs, gold=True)
        fresh = gold_rows(rows, load_answers(corpus, (row["reading_id"] for row in rows)))
        if samples:
            recorder.stage("sample")
            fresh += sample(
                corpus,
                config,
                runs,
                gold=fresh,
                shelf=shelf,
                exclude=exclude,
                samples=samples,
                run_id=run_id,
                show=show,
            )
        if questions:
            recorder.stage("generate")
            written, refused = write(
                corpus, config, shelf, exclude=exclude, count=questions, run_id=run_id, recorder=recorder
            )
            fresh += written
    recorder.stage("choose")
    if not (fresh or refused or verdicts(corpus) or read_qa(store, corpus.name)):
        raise UsageError(
            f"nothing was answered with gold yet: memagent ask {name} --questions FILE with answers in it, "
            "memagent feedback FILE, or harvest with --agreement N or --generate N"
        )
    summary = settle(corpus, fresh, run_id, exclude=exclude, least_share=least_share, refused=refused)
    recorder.stage("done")
    summary["seconds"] = round((now() - started).total_seconds(), 2)
    write_run(store, summary, started, config.public())
    return summary


def sample(
    corpus: Corpus,
    config: Config,
    runs: Sequence[str],
    gold: Sequence[Qa],
    shelf: CorpusIndex,
    exclude: Collection[str],
    samples: int,
    run_id: str,
    show: Progress | None = None,
) -> list[Qa]:
    """Read what was asked of single documents without gold several times more, and make rows of what agrees.

    Each sampling is a run of kind ``agreement``. Its readings are kept like any other: the same again reads nothing.
    """
    store, known = corpus.store, {row.qa_id for row in gold}
    documents: dict[str, dict[str, None]] = defaultdict(dict)
    names: dict[str, str] = {}
    for row in asked(store, runs, gold=False):
        one = shelf.place(Qa(row["question"], (), tuple(row["stream"]), documents=(), source="agreement"))
        fit = one.documents and not set(exclude) & set(one.tags) and one.qa_id not in known
        if row["scope"] == "document" and row["doc_id"] in shelf.current and fit:
            documents[one.question][row["doc_id"]] = None
            names[one.question] = row["question_id"]
    wanted = [Question(names[text], text, tuple(chosen)) for text, chosen in documents.items()]
    drawn = []
    for seed in range(1, samples + 1) if wanted else ():
        reading = {**config.reading, "temperature": 1.0, "seed": seed}
        settings = config.model_copy(update={"reading": reading})
        done = ask(corpus.name, wanted, settings, kind="agreement", run_id=f"{run_id}-s{seed}", show=show)
        drawn.append(done["run_id"])
    rows = asked(store, drawn)
    return agreed_rows(rows, load_answers(corpus, (row["reading_id"] for row in rows)))


def write(
    corpus: Corpus,
    config: Config,
    shelf: CorpusIndex,
    exclude: Collection[str],
    count: int,
    run_id: str,
    recorder: Recorder,
) -> tuple[list[Qa], Counter[str]]:
    """Have the model write questions from segments that have none yet."""
    store, reader = corpus.store, ReaderSpec(config)
    hashes = current_documents(corpus, ["content_hash"])["content_hash"].to_pylist()
    hashes = {name for name in hashes if not shelf.tags(name) & set(exclude)}
    segment(corpus, reader, run_id)
    known = {at for row in read_qa(store, corpus.name) if row.source == "generated" for at in row.evidence}
    places = segmented(corpus, reader.tokenizer, reader.reading, hashes=hashes)
    chosen = choose(places, count, run_id, known)
    return generate(store, reader, config, chosen=chosen, progress=recorder)


def settle(
    corpus: Corpus,
    fresh: Sequence[Qa],
    run_id: str,
    *,
    exclude: Collection[str] = EXCLUDED,
    least_share: float = LEAST_SHARE,
    refused: Mapping[str, int] | None = None,
) -> HarvestSummary:
    """Choose between new rows, feedback and the rows of the table; make the table what was chosen.

    Returns:
        The summary: how many rows teach, by source and side, what changed, and what was dropped, by reason.
    """
    said, rejected = feedback_rows(verdicts(corpus))
    new = [*fresh, *said]
    anew = {(row.qa_id, row.source) for row in new}
    stored = [row for row in read_qa(corpus.store, corpus.name) if (row.qa_id, row.source) not in anew]
    shelf = CorpusIndex(corpus)
    chosen = gather(map(shelf.place, [*new, *stored]), exclude, least_share, rejected)
    written = write_qa(corpus, chosen.kept, run_id)
    sources, splits = (
        Counter(row.source for row in chosen.kept),
        Counter(split_of(row.documents) for row in chosen.kept),
    )
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
