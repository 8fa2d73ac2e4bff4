"""Ask and digest: the stages put together, top to bottom."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store import Store
from infra.tables.corpora import remember, sources_of, standing_questions
from infra.tables.delta import Table, now
from infra.tables.documents import current_documents
from memagent.config import Config
from memagent.errors import UsageError
from memagent.records import Question
from pipelines.runs import Progress, Recorder, finish, new_run_id, run_answers
from pipelines.stages.estimate import estimate
from pipelines.stages.ingest import ingest
from pipelines.stages.plan import Plan, make_plan
from pipelines.stages.read import PassResult, read
from pipelines.stages.segment import segment


def ask(
    corpus: str,
    questions: Sequence[Question],
    config: Config,
    *,
    archive: bool = False,
    reread: bool = False,
    dry_run: bool = False,
    kind: str = "ask",
    run_id: str | None = None,
    show: Progress | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Answer questions over a corpus; return the run's summary.

    What was answered before is not read again. With `dry_run`, return the estimate instead.

    Raises:
        UsageError: the corpus is empty, or model, template and question do not fit together.
        MemagentError: the engine cannot be started.
    """
    store, reader, started = Store(config.store), ReaderSpec(config), now()
    run_id = run_id or new_run_id()
    documents = current_documents(store, corpus, ["doc_id", "content_hash"])
    if not documents.num_rows:
        raise UsageError(f"corpus {corpus!r} has no documents in {store.url}: memagent ingest {corpus} FOLDER")
    if reader.max_model_len:
        for question in questions:
            reader.scheme.check_window(reader.tokenizer.encode(question.text), reader.max_model_len)
    recorder = Recorder(store, run_id, show)
    with lazy_ray(config.ray):
        recorder.stage("segment")
        cut = segment(store, corpus, reader, documents["content_hash"].to_pylist(), run_id, recorder)
        recorder.stage("plan")
        plan = make_plan(store, corpus, reader, questions, archive=archive, reread=reread)
        if dry_run:
            return estimate(store, corpus, reader, plan, config)
        store.write_part(plan.table(), "runs", run_id, "plan.parquet")
        _quarantine_unmatched(store, corpus, run_id, plan)
        recorder.stage(
            "read",
            documents_total=len({h for row in plan.pending for h in row["stream"]}),
            readings_total=len(plan.pending),
            segments_total=sum(plan.left(row) for row in plan.pending),
            engine=config.engine.kind,
        )
        result = read(store, corpus, run_id, reader, plan, config, recorder) if plan.pending else PassResult()
    recorder.stage("done")
    recorder.save()
    more = {**(extra or {}), "segmented": cut.as_dict(), "stage_seconds": recorder.seconds}
    if kind == "digest":
        more["rollup"] = rollup(store, corpus, plan)
    return finish(store, corpus, run_id, kind, started, config, reader, plan, result, more)


def digest(
    corpus: str,
    questions: Sequence[Question] | None,
    config: Config,
    *,
    fetch: bool = True,
    run_id: str | None = None,
    dry_run: bool = False,
    show: Progress | None = None,
) -> dict[str, Any]:
    """Bring a corpus and the answers to its standing questions up to date; return the run's summary.

    Looks at the corpus's sources again (unless `fetch` is off), reads what is new or changed, and
    rolls the answers up. `questions` become the standing questions; None takes those that stand.
    With `dry_run` the documents are taken in, nothing is read, and the standing questions stay.

    Raises:
        UsageError: there are no standing questions.
    """
    store = Store(config.store)
    run_id = run_id or new_run_id()
    if questions is not None and not dry_run:
        remember(store, corpus, questions=questions)
    standing = standing_questions(store, corpus) if questions is None else list(questions)
    if not standing:
        raise UsageError(f"corpus {corpus!r} has no standing questions: memagent digest {corpus} --questions FILE")
    extra: dict[str, Any] = {}
    with lazy_ray(config.ray):
        sources = sources_of(store, corpus) if fetch else []
        if sources:
            extra["ingest"] = ingest(store, corpus, sources, config, run_id, show).as_dict()
        return ask(corpus, standing, config, kind="digest", run_id=run_id, dry_run=dry_run, show=show, extra=extra)


def rollup(store: Store, corpus: str, plan: Plan) -> list[dict[str, Any]]:
    """Roll a digest's answers up: per question how often each answer was given, and what changed since the last."""
    answers = run_answers(store, corpus, plan.rows)
    before = _previous(store, corpus)
    result = []
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


def _previous(store: Store, corpus: str) -> dict[tuple[str, str], str]:
    """Return (doc_id, question_id) -> answer as of the last digest."""
    runs = Table(store, "runs").read(corpus, ["run_id", "kind", "ended_at"], pc.field("kind") == "digest")
    if not runs.num_rows:
        return {}
    last = runs.sort_by("ended_at")["run_id"].to_pylist()[-1]
    rows = store.read_part("runs", last, "plan.parquet").to_pylist()
    answers = run_answers(store, corpus, rows)
    return {
        (row["doc_id"], row["question_id"]): answers[row["reading_id"]]["answer"]
        for row in rows
        if row["reading_id"] in answers
    }


def _quarantine_unmatched(store: Store, corpus: str, run_id: str, plan: Plan) -> None:
    Table(store, "quarantine").upsert(
        {
            "corpus": corpus,
            "stage": "plan",
            "item": question.question_id,
            "reason": "no-document",
            "detail": f"no readable document of the corpus is named {json.dumps(question.documents)}",
            "run_id": run_id,
            "at": now(),
        }
        for question in plan.unmatched
    )
