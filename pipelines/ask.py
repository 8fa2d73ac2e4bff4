"""Ask and digest: the stages put together, top to bottom."""

import json
from collections import Counter
from collections.abc import Sequence

from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.corpora import remember, sources_of, standing_questions
from infra.tables.delta import Table, now
from infra.tables.documents import current_documents
from infra.tables.rows import FailureRow
from infra.tables.runs import QuestionRollup, RunExtras, RunSummary, run_ids
from memagent.config import Config
from memagent.errors import UsageError
from memagent.records import Question
from pipelines.runs import Progress, Recorder, finish, new_run_id, run_answers
from pipelines.stages.estimate import Estimate, estimate
from pipelines.stages.ingest import ingest
from pipelines.stages.plan import Plan, make_plan
from pipelines.stages.read import PassResult, ReadingPass, read
from pipelines.stages.segment import SegmentSummary, segment


def ask(
    name: str,
    questions: Sequence[Question],
    config: Config,
    *,
    archive: bool = False,
    reread: bool = False,
    kind: str = "ask",
    run_id: str | None = None,
    show: Progress | None = None,
    extra: RunExtras | None = None,
) -> RunSummary:
    """Answer questions over a corpus; return the run's summary.

    What was answered before is not read again.

    Raises:
        UsageError: the corpus is empty, or model, template and question do not fit together.
        MemagentError: the engine cannot be started.
    """
    started, run_id = now(), run_id or new_run_id()
    reading = ReadingPass(Corpus(Store(config.store), name), run_id, ReaderSpec(config), config)
    corpus = reading.corpus
    recorder = Recorder(corpus.store, run_id, show)
    with lazy_ray(config.ray):
        cut, plan = _planned(reading, questions, recorder, archive=archive, reread=reread)
        corpus.store.write_part(plan.table(), "runs", run_id, "plan.parquet")
        _quarantine_unmatched(corpus, run_id, plan)
        recorder.stage(
            "read",
            documents_total=len({h for row in plan.pending for h in row["stream"]}),
            readings_total=len(plan.pending),
            segments_total=sum(plan.left(row) for row in plan.pending),
            engine=config.engine.kind,
        )
        result = read(reading, plan, recorder) if plan.pending else PassResult()
    recorder.stage("done")
    recorder.save()
    more: RunExtras = {**(extra or {}), "segmented": cut.as_dict(), "stage_seconds": recorder.seconds}
    if kind == "digest":
        more["rollup"] = rollup(corpus, plan)
    return finish(reading, kind, started, plan=plan, result=result, extra=more)


def dry_run(
    name: str,
    questions: Sequence[Question],
    config: Config,
    *,
    archive: bool = False,
    reread: bool = False,
    show: Progress | None = None,
) -> Estimate:
    """Say what `ask` would read, and how long that would take; documents are segmented, nothing is read.

    Raises:
        UsageError: as `ask`.
    """
    run_id = new_run_id()
    reading = ReadingPass(Corpus(Store(config.store), name), run_id, ReaderSpec(config), config)
    with lazy_ray(config.ray):
        recorder = Recorder(reading.corpus.store, run_id, show)
        _, plan = _planned(reading, questions, recorder, archive=archive, reread=reread)
        return estimate(reading.corpus, reading.reader, plan, config)


def digest(
    name: str,
    questions: Sequence[Question] | None,
    config: Config,
    *,
    fetch: bool = True,
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Bring a corpus and the answers to its standing questions up to date; return the run's summary.

    Looks at the corpus's sources again (unless `fetch` is off), reads what is new or changed, and
    rolls the answers up. `questions` become the standing questions; None takes those that stand.

    Raises:
        UsageError: there are no standing questions.
    """
    corpus, run_id = Corpus(Store(config.store), name), run_id or new_run_id()
    if questions is not None:
        remember(corpus, questions=questions)
    standing, extra = _standing(corpus, questions), RunExtras()
    with lazy_ray(config.ray):
        if fetch and (sources := sources_of(corpus)):
            extra["ingest"] = ingest(corpus, sources, config, run_id=run_id, progress=show).as_dict()
        return ask(name, standing, config, kind="digest", run_id=run_id, show=show, extra=extra)


def digest_dry_run(
    name: str,
    questions: Sequence[Question] | None,
    config: Config,
    *,
    fetch: bool = True,
    show: Progress | None = None,
) -> Estimate:
    """Say what `digest` would read: the documents are taken in, nothing is read, the standing questions stay.

    Raises:
        UsageError: there are no standing questions.
    """
    corpus = Corpus(Store(config.store), name)
    standing = _standing(corpus, questions)
    with lazy_ray(config.ray):
        if fetch and (sources := sources_of(corpus)):
            ingest(corpus, sources, config, run_id=new_run_id(), progress=show)
        return dry_run(name, standing, config, show=show)


def _standing(corpus: Corpus, questions: Sequence[Question] | None) -> list[Question]:
    standing = standing_questions(corpus) if questions is None else list(questions)
    if not standing:
        name = corpus.name
        raise UsageError(f"corpus {name!r} has no standing questions: memagent digest {name} --questions FILE")
    return standing


def _planned(
    reading: ReadingPass, questions: Sequence[Question], recorder: Recorder, *, archive: bool, reread: bool
) -> tuple[SegmentSummary, Plan]:
    """Segment what is not yet, and plan the readings."""
    corpus, reader = reading.corpus, reading.reader
    documents = current_documents(corpus, ["doc_id", "content_hash"])
    if not documents.num_rows:
        name = corpus.name
        raise UsageError(f"corpus {name!r} has no documents in {corpus.store.url}: memagent ingest {name} FOLDER")
    if reader.max_model_len:
        for question in questions:
            reader.scheme.check_window(reader.tokenizer.encode(question.text), reader.max_model_len)
    recorder.stage("segment")
    cut = segment(corpus, reader, documents["content_hash"].to_pylist(), run_id=reading.run_id, progress=recorder)
    recorder.stage("plan")
    return cut, make_plan(corpus, reader, questions, archive=archive, reread=reread)


def rollup(corpus: Corpus, plan: Plan) -> list[QuestionRollup]:
    """Roll a digest's answers up: per question how often each answer was given, and what changed since the last."""
    answers = run_answers(corpus, plan.rows)
    before = _previous(corpus)
    result: list[QuestionRollup] = []
    for question_id in dict.fromkeys(row["question_id"] for row in plan.rows):
        rows = [row for row in plan.rows if row["question_id"] == question_id]
        given = {row["doc_id"]: answers[row["reading_id"]] for row in rows if row["reading_id"] in answers}
        counts = Counter(answer["answer"] for answer in given.values() if answer["found"])
        changed = [
            {"document": doc, "before": before[doc, question_id], "now": answer["answer"]}
            for doc, answer in given.items()
            if (doc, question_id) in before and before[doc, question_id] != answer["answer"]
        ]
        result.append(
            {
                "question_id": question_id,
                "question": rows[0]["question"],
                "documents": len(rows),
                "found": sum(answer["found"] for answer in given.values()),
                "failed": len(rows) - len(given),
                "answers": counts.most_common(20),
                "distinct": len(counts),
                "changed": changed,
                "new_documents": [doc for doc in given if (doc, question_id) not in before],
            }
        )
    return result


def _previous(corpus: Corpus) -> dict[tuple[str, str], str]:
    """Return (doc_id, question_id) -> answer as of the last digest."""
    digests = run_ids(corpus, ["digest"])
    if not digests:
        return {}
    rows = corpus.store.read_part("runs", digests[-1], "plan.parquet").to_pylist()
    answers = run_answers(corpus, rows)
    return {
        (row["doc_id"], row["question_id"]): answers[row["reading_id"]]["answer"]
        for row in rows
        if row["reading_id"] in answers
    }


def _quarantine_unmatched(corpus: Corpus, run_id: str, plan: Plan) -> None:
    rows: list[FailureRow] = [
        {
            "corpus": corpus.name,
            "stage": "plan",
            "item": question.question_id,
            "reason": "no-document",
            "detail": f"no readable document of the corpus is named {json.dumps(question.documents)}",
            "run_id": run_id,
            "at": now(),
        }
        for question in plan.unmatched
    ]
    Table(corpus.store, "quarantine").upsert(rows)
