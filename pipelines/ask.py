"""Ask and digest: the stages put together, top to bottom."""

import json
import logging
import sys
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import pyarrow.compute as pc

from infra.cluster.loaded_engine import LocalEngine
from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store.claims import RunningError, beat, claimed
from infra.store.corpora import check_known, default_questions, remember, sources_of
from infra.store.delta import Table
from infra.store.documents import NoDocumentsError, check_documents, has_documents
from infra.store.location import Corpus, Store, file_system
from infra.store.plans import has_plan
from infra.store.runs import (
    RunExtras,
    RunSummary,
    SegmentSummary,
    begin_run,
    close_runs,
    last_digest,
    run_id_or_new,
    run_ids,
)
from infra.store.schemas import failure_row, now
from infra.system.logs import PRODUCT, formatter
from memagent.config import Config, LoggingConfig
from memagent.errors import MemagentError, UsageError
from memagent.questions import load_questions
from memagent.records import Progress, Question, stable_hash
from pipelines.io.writer import xlsx_rows
from pipelines.runs import Recorder, finish, repeat
from pipelines.stages.ingest import ingest
from pipelines.stages.plan import Plan, make_plan
from pipelines.stages.planned_readings import Chosen, PlanRequest
from pipelines.stages.read import AnswerWatch, PassResult, ReadingPass, read
from pipelines.stages.segment import segment

_log = logging.getLogger("memagent.ask")
_LOGGERS = (PRODUCT, "ray")
_NAMED = 5
"""Questions that a warning names."""
_LINES = 2_000
"""The newest ones are kept."""


class RunLog(logging.Handler):
    """Collects warnings of the product and of Ray while its body runs, and writes them to ``runs/<id>/log.txt``.

    Lines of workers are among them (`infra.system.logs.relay`).
    """

    def __init__(self, corpus: Corpus, run_id: str, policy_id: str, config: LoggingConfig) -> None:
        super().__init__(config.level.upper())
        self.setFormatter(formatter(config.format))
        self._store: Store = corpus.store
        self._run = {"run_id": run_id, "corpus": corpus.name, "policy_id": policy_id}
        self._json = config.format == "json"
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Where nothing else handles the product's lines, they go to standard error as well."""
        # Each line says of which run it is, also to the handlers of the loggers above, which come next.
        vars(record).update(self._run)
        line = self.format(record)
        self._lines.append(line)
        if record.name.startswith(PRODUCT) and not logging.getLogger().handlers:
            print(line if self._json else line.split(" ", 4)[4], file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        logger = logging.getLogger(PRODUCT)
        self._before = logger.level
        if logger.getEffectiveLevel() > self.level:
            logger.setLevel(self.level)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        logging.getLogger(PRODUCT).setLevel(self._before)
        if self._lines:
            lines = "\n".join(self._lines) + "\n"
            self._store.write_bytes(lines.encode(), "runs", self._run["run_id"], "log.txt")


_BUDGETED = ("ask", "digest", "backfill")
"""Kinds of runs that a budget may end: an evaluation that lacks readings has no score."""


def ask(
    name: str,
    questions: Sequence[Question],
    config: Config,
    *,
    archive: bool = False,
    reread: bool = False,
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Answer questions over a corpus; return the run's summary. What was answered before is not read again.

    Args:
        name: of the corpus.
        questions: asked of every document, or of the documents that a question names.
        config: store, model, reading, engines.
        archive: read all documents concatenated.
        reread: read again what other versions of the policy have answered.
        run_id: of the run; a new one by default.
        show: receives the progress counts.

    Raises:
        UsageError: the corpus is empty, or model, template and question do not fit together.
        MemagentError: the engine cannot be started.
    """
    return run_readings(AskRequest(name, questions, config, archive=archive, reread=reread, run_id=run_id), show)


@dataclass(frozen=True, slots=True)
class AskRequest:
    """What a run asks: `ask`, or a run of another kind that asks questions."""

    name: str
    """Of the corpus."""
    questions: Sequence[Question]
    config: Config
    archive: bool = False
    reread: bool = False
    chosen: Chosen | None = None
    """A backfill: only some of the readings."""
    kind: str = "ask"
    """ask, digest, backfill, evaluate or agreement."""
    run_id: str | None = None
    started: datetime | None = None
    """When the run began; None: now."""
    extra: RunExtras = field(default_factory=lambda: RunExtras())
    """Further keys of the run's summary."""
    watch: AnswerWatch | None = None
    """Is told of the answers as they are found."""
    engine: LocalEngine | None = None
    """One that runs already, to read with by its own reader."""


def run_readings(request: AskRequest, show: Progress | None = None) -> RunSummary:
    """Segment, plan, read and summarise; see `ask`."""
    started, run_id = request.started or now(), run_id_or_new(request.run_id)
    config, questions, kind, archive = request.config, request.questions, request.kind, request.archive
    reader = request.engine.reader if request.engine else ReaderSpec(config)
    corpus, budget = Corpus(Store(config.store), request.name), config.cost.limit if kind in _BUDGETED else None
    reading = ReadingPass(corpus, run_id, reader, config, engine=request.engine, budget=budget)
    again = kind == "digest" and bool(run_ids(corpus, ["digest"]))
    if not again:
        check_documents(corpus)
    check_window(reader, questions)
    recorder = Recorder(corpus.store, run_id, show)
    work = [_work(reading.reader, question, archive) for question in questions]
    beat(corpus.store, run_id)  # before its row: a row without a heartbeat is of a run that died
    policy_id = reading.reader.policy.policy_id
    unjudged = again and config.quality.withhold
    begin_run(corpus, run_id, kind, config=config.public(), work=work, policy_id=policy_id, withheld=unjudged)
    try:
        if again:  # that a corpus has become empty is a failure, and its run is seen
            check_documents(corpus)
        return _run(request, reading, recorder, started=started, work=work)
    except RunningError:
        Table(corpus.store, "runs").delete(corpus.name, run_id=[run_id])  # nothing was done
        raise
    except NoDocumentsError as error:
        raise MemagentError(str(error)) from error


def _run(
    request: AskRequest, reading: ReadingPass, recorder: Recorder, started: datetime, work: list[str]
) -> RunSummary:
    config, corpus, run_id = request.config, reading.corpus, reading.run_id
    with (
        RunLog(corpus, run_id, reading.reader.policy.policy_id, config.logging),
        claimed(
            corpus,
            run_id,
            work,
            wait=config.wait,
            waiting=lambda run: recorder.stage("wait", run=run),
            check=(lambda: None) if request.watch is None else request.watch.check,
        ),
        lazy_ray(config.ray),
    ):
        outside = outside_scope(reading.reader, request.questions) if request.kind in _BUDGETED else RunExtras()
        cut, plan = _planned(reading, request, recorder)
        _quarantine_unmatched(corpus, run_id, plan, request.questions)
        recorder.stage(
            "read",
            documents_total=plan.counts["pending_documents"],
            readings_total=plan.counts["pending"],
            segments_total=plan.segments,
            engine=config.engine.kind,
        )
        if request.watch is not None:
            request.watch.planned(corpus, run_id)
        result = read(reading, plan, recorder, request.watch) if plan.blocks else PassResult()
        recorder.stage("done")
        recorder.save()
        more: RunExtras = {**request.extra, **outside, "segmented": cut, "stage_seconds": recorder.seconds}
        if result.unread:
            more["work"] = work
        if request.kind == "digest":
            more["reader"] = {
                "policy_id": reading.reader.policy.policy_id,
                "config_hash": reading.reader.config_hash,
                "since": started.isoformat(),
                "questions": [question.text for question in request.questions],
            }
        summary = finish(reading, request.kind, started, plan=plan, result=result, extra=more)
        if not result.failed and not result.unread and request.chosen is None:
            close_runs(corpus, work)
        return summary


def _work(reader: ReaderSpec, question: Question, archive: bool) -> str:
    """Return the name under which a run claims a question: runs with the same name do the same work."""
    parts = (question.text, question.documents, archive, reader.policy.policy_id, reader.config_hash)
    return stable_hash(*parts)[:16]


def check_window(reader: ReaderSpec, questions: Sequence[Question]) -> None:
    """Check that each question fits into the model's window.

    Raises:
        UsageError: one does not.
        ConfigError: a served model's tokenizer is not known.
    """
    _ = reader.tokenizer_source
    if reader.max_model_len:
        for question in questions:
            reader.scheme.check_window(reader.tokenizer.encode(question.text), reader.max_model_len)


def read_questions(path: str) -> list[Question]:
    """Load questions from a local file or one on S3. Raises UsageError as `memagent.questions.load_questions`."""
    if not path.startswith("s3://"):
        return load_questions(path, xlsx_rows)
    with TemporaryDirectory() as folder:
        local = Path(folder, path.rsplit("/", 1)[-1])
        try:
            file_system(path).get_file(path, str(local))
            return load_questions(str(local), xlsx_rows)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file") from None
        except UsageError as error:
            raise UsageError(str(error).replace(str(local), path)) from error


def store_questions(store: Store, run_id: str, questions: Sequence[Question]) -> str:
    """Write questions to a run's folder; return the URL for a command line, which every user of a machine can see."""
    lines = []
    for question in questions:
        row = {"id": question.question_id, "question": question.text, "documents": question.documents or None}
        lines.append(json.dumps(row | {"answers": question.answers}) + "\n")
    parts = ("runs", run_id, "questions.jsonl")
    store.write_bytes("".join(lines).encode(), *parts)
    return "/".join((store.url.rstrip("/"), *parts))


def outside_scope(reader: ReaderSpec, questions: Sequence[Question]) -> RunExtras:
    """Return the questions that a reader declares not to be trained for, and say so; nothing where there are none."""
    scope = reader.scheme.scope
    outside = scope.outside(question.text for question in questions) if scope else []
    if scope is None or not outside:
        return {}
    _log.warning(
        "%s was not trained for %d of %d questions; its answers to them are mostly wrong, and marked: %s\n"
        "It was trained for questions like these: %s\nFor others give a larger model (--model).",
        *(scope.reader, len(outside), len(questions)),
        " | ".join([*outside[:_NAMED], *(["..."] if len(outside) > _NAMED else [])]),
        " | ".join(kind.examples[0] for kind in scope.kinds),
    )
    return {"outside_scope": outside}


def prepare_engine(reader: ReaderSpec, config: Config) -> None:
    """Have the engine load while other stages run, where readings may run beside this process; returns at once."""
    if config.runs_here(0):
        reader.prepare_local_engine()


def digest(
    name: str,
    questions: Sequence[Question] | None,
    config: Config,
    *,
    fetch: bool = True,
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Update a corpus and the answers to its default questions; return the run's summary.

    Looks at the corpus's sources again (unless `fetch` is off), reads what is new or changed, and rolls the answers up.
    `questions` replace the default questions; None keeps them.

    Raises UsageError: there are no default questions; MemagentError: the corpus has become empty.
    """
    started, corpus, run_id = now(), Corpus(Store(config.store), name), run_id_or_new(run_id)
    check_known(corpus)
    if questions is not None:
        remember(corpus, questions=questions)
    defaults, extra = questions_or_default(corpus, questions), RunExtras()
    reader = ReaderSpec(config)
    check_window(reader, defaults)  # before hours of ingest
    if fetch and not has_documents(corpus):
        prepare_engine(reader, config)
    with lazy_ray(config.ray):
        if fetch and (sources := sources_of(corpus)):
            extra["ingest"] = ingest(corpus, sources, config, run_id=run_id, progress=show)
        reading = ReadingPass(corpus, run_id, reader, config)
        if changed := _changed_model(reading):
            _log.warning("model changed: %s; it reads all documents anew", changed)
            extra["model_changed"] = changed
        extra["inputs"] = _inputs(reading, defaults)
        if (same := _previous(corpus, extra["inputs"])) is not None:
            _forget_unmatched(corpus, [question.question_id for question in defaults])
            return repeat(reading, same, started=started, extra=extra)
        request = AskRequest(name, defaults, config, kind="digest", run_id=run_id, started=started, extra=extra)
        return run_readings(request, show)


def _inputs(reading: ReadingPass, questions: Sequence[Question]) -> dict[str, str]:
    """Return hashes of all that a digest depends on. Its own answers are among it: a repair may have dropped some."""
    reader, corpus = reading.reader, reading.corpus
    return {
        **{name: Table(corpus.store, name).fingerprint(corpus.name) for name in ("documents", "answers", "feedback")},
        "questions": stable_hash([asdict(question) for question in questions]),
        "policy": reader.policy.policy_id,
        "config": reader.config_hash,
    }


def _changed_model(reading: ReadingPass) -> str:
    """Say from which model to which the digests of a corpus change; empty: it is the last one's, or a version of it."""
    before = last_digest(reading.corpus)
    same = before is None or before["policy"] == reading.reader.policy.name
    return "" if before is None or same else f"{before['policy_id']} -> {reading.reader.policy.policy_id}"


def _previous(corpus: Corpus, inputs: dict[str, str]) -> RunSummary | None:
    """Return the last digest, if it had the same inputs and nothing of it failed."""
    summary = last_digest(corpus)
    if summary is None or summary.get("inputs") != inputs or not has_plan(corpus.store, summary["run_id"]):
        return None
    readings = summary["readings"]
    return None if readings["failed"] or readings.get("unread") else summary


def questions_or_default(corpus: Corpus, questions: Sequence[Question] | None) -> list[Question]:
    """Return the default questions: `questions`, or those that the corpus has. Raises UsageError: there are none."""
    defaults = default_questions(corpus) if questions is None else list(questions)
    if not defaults:
        name = corpus.name
        raise UsageError(f"corpus {name!r} has no default questions: memagent digest {name} --questions FILE")
    return defaults


def _planned(reading: ReadingPass, request: AskRequest, recorder: Recorder) -> tuple[SegmentSummary, Plan]:
    """Segment new documents, and plan the readings."""
    corpus, reader = reading.corpus, reading.reader
    recorder.stage("segment")
    cut = segment(corpus, reader, run_id=reading.run_id, progress=recorder)
    recorder.stage("plan")
    planned = PlanRequest(
        corpus,
        reader,
        tuple(request.questions),
        run_id=reading.run_id,
        engines=reading.config.pool.max_size,
        archive=request.archive,
        reread=request.reread,
        chosen=request.chosen,
    )
    return cut, make_plan(planned)


def _forget_unmatched(corpus: Corpus, asked: Collection[str]) -> None:
    """Drop earlier runs' failures to match documents, except those of default questions that are not asked now."""
    quarantine = Table(corpus.store, "quarantine")
    failed = set(quarantine.read(corpus.name, ["item"], pc.field("stage") == "plan")["item"].to_pylist())
    standing = {question.question_id for question in default_questions(corpus)} - set(asked)
    quarantine.delete(corpus.name, stage=["plan"], item=failed - standing)


def _quarantine_unmatched(corpus: Corpus, run_id: str, plan: Plan, questions: Sequence[Question]) -> None:
    texts = {question.question_id: question.text for question in questions}
    _forget_unmatched(corpus, texts)
    Table(corpus.store, "quarantine").upsert(
        failure_row(
            corpus.name,
            "plan",
            question_id,
            reason="no-document",
            detail=f"no readable document of the corpus is named {json.dumps(names, ensure_ascii=False)}, of which "
            f"{texts[question_id]!r} is asked",
            run_id=run_id,
        )
        for question_id, names in plan.missing.items()
    )
