"""A made-up run in a store of real tables: contracts, questions, memories, failures. For the report's tests."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import PLAN, SEGMENTS
from infra.store.turns import TurnWriter
from memagent.records import LEVELS, Level, Turn, text_hash

CORPUS = "contracts"
RUN = "20260801-021500-a1b2c3"
EARLIER = "20260731-021500-99f0e1"
START = datetime(2026, 8, 1, 2, 15, tzinfo=UTC)
STATES = ["Delaware", "New York", "California", "Texas", "Nevada", "Illinois"]
QUESTIONS = {
    "law": "Which state's law governs the agreement?",
    "date": "On what date was the agreement signed?",
    "cap": "What is the cap on liability?",
}
SEGMENT_CHARS = 1_500
OUTSIDE = "outside what it was trained for"
"""Warning of its answers of low confidence."""
_FILLER = (
    "{n}. Each party shall keep confidential all information that the other party discloses to it in connection "
    "with this Agreement and shall use it for no other purpose than the performance of its obligations hereunder. "
    "Nothing in this section limits the right of a party to disclose what a court orders it to disclose, provided "
    "that it gives the other party notice in good time.\n\n"
)


def level_of(confidence: float | None) -> Level | None:
    """Return the level of an answer's confidence."""
    return None if confidence is None else LEVELS[(confidence >= 0.5) + (confidence >= 0.8)]


@dataclass
class MadeUpRun:
    """Rows of a run, put into the store by `save`."""

    store: Store
    documents: list[dict[str, Any]] = field(default_factory=list)
    segmented: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    plan: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = TurnWriter(Corpus(self.store, CORPUS), RUN, "pol-nano")
        self.by_hash: dict[str, dict[str, Any]] = {}

    def document(self, doc_id: str, text: str, title: str = "") -> str:
        """Add a document, cut every `SEGMENT_CHARS` characters; return its content hash."""
        name = text_hash(text)
        self.documents.append(
            dict(
                corpus=CORPUS,
                doc_id=doc_id,
                content_hash=name,
                title=title,
                source=f"/archive/{doc_id}",
                source_stamp="1",
                media_type="text/plain",
                encoding="utf-8",
                size_bytes=len(text.encode()),
                chars=len(text),
                state="present",
                seen_at=START,
                first_seen=START,
                text=text,
            )
        )
        self.by_hash[name] = self.documents[-1]
        first = len(self.segments)
        for i, start in enumerate(range(0, len(text), SEGMENT_CHARS)):
            end = min(len(text), start + SEGMENT_CHARS)
            part = text[start:end]
            self.segments.append(
                dict(
                    content_hash=name, index=i, char_start=start, char_end=end, segment_hash="", text=part, token_ids=[]
                )
            )
        self.segmented.append(
            dict(
                corpus=CORPUS,
                segment_key=name,
                content_hash=name,
                tokenizer="t",
                segment_tokens=400,
                boundary="soft",
                cutting_version=1,
                part="segments/part.parquet",
                first_row=first,
                segments=len(self.segments) - first,
                tokens=0,
                written_at=START,
            )
        )
        return name

    def reading(
        self,
        stream: list[str],
        question_id: str,
        question: str,
        answer: str,
        memories: dict[int, str],
        *,
        quotes: tuple[str, ...] = (),
        gold: list[str] | None = None,
        state: str = "new",
        failed: str = "",
        carried: int = 0,
    ) -> str:
        """Add a reading: `memories` maps positions in the stream to the memory after them; return its id."""
        places = [(name, i) for name in stream for i in range(self._count(name))]
        reading_id = text_hash(f"{stream} {question}")
        one = len(stream) == 1
        doc = self.by_hash[stream[0]]
        doc_id = doc["doc_id"] if one else ""
        self.plan.append(
            dict(
                reading_id=reading_id,
                doc_id=doc_id,
                title=doc["title"] if one else f"{len(stream)} documents",
                content_hash=stream[0] if one else text_hash(str(stream)),
                stream=stream,
                documents=len(stream),
                question_id=question_id,
                question=question,
                gold=gold,
                scope="document" if one else "archive",
                state=state,
                segments=len(places),
                tokens=400 * len(places),
                answered_by=reading_id if state == "answered" else "",
                carried_from="",
                carried_segments=carried,
            )
        )
        if failed:
            self.fail("read", f"{doc_id or 'archive'} ? {question}", failed, "the engine refused the prompt")
            return reading_id
        sure = None if state == "answered" else 0.3 + int(text_hash(reading_id)[:4], 16) % 70 / 100
        self._log(reading_id, places, memories, carried=carried, sure=sure)
        evidence = [self._evidence(name, quote) for quote in quotes for name in stream if quote in self._text(name)]
        self.answers.append(
            dict(
                corpus=CORPUS,
                reading_id=reading_id,
                question_id=question_id,
                question=question,
                scope=self.plan[-1]["scope"],
                content_hash=self.plan[-1]["content_hash"],
                stream=stream,
                policy_id="pol-nano",
                config_hash="cfg-1",
                answer=answer,
                found=bool(answer),
                confidence=sure,
                confidence_level=level_of(sure),
                warnings=[OUTSIDE] if level_of(sure) == "low" else None,
                evidence=evidence,
                segments=len(places) - carried,
                conversations=len(places) - carried + 1,
                prompt_tokens=460 * len(places),
                cached_tokens=130 * len(places),
                output_tokens=20 * len(places),
                seconds=0.4 * len(places),
                carried_from="an-older-reading" if carried else "",
                carried_segments=carried,
                run_id=EARLIER if state == "answered" else RUN,
                answered_at=START,
            )
        )
        return reading_id

    def fail(self, stage: str, item: str, reason: str, detail: str, run_id: str = RUN) -> None:
        """Add a quarantine row."""
        self.quarantine.append(
            dict(corpus=CORPUS, stage=stage, item=item, reason=reason, detail=detail, run_id=run_id, at=START)
        )

    def unreadable(self, source: str, reason: str, detail: str) -> None:
        """Add a source that an earlier ingest could not read."""
        self.sources.append(
            dict(
                corpus=CORPUS,
                source=source,
                doc_id="",
                source_stamp="",
                state="failed",
                documents=0,
                run_id=EARLIER,
                seen_at=START,
            )
        )
        self.fail("ingest", source, reason, detail, EARLIER)

    def save(self, *, seconds: int = 60, scored: bool = False, kind: str = "ask", **summary: Any) -> str:
        """Write everything; return the run id."""
        self.turns.flush()
        for name in ("documents", "segmented", "answers", "quarantine", "sources"):
            Table(self.store, name).append(getattr(self, name))
        Table(self.store, "texts").append(self.documents)
        self.store.write_part(pa.Table.from_pylist(self.segments, schema=SEGMENTS), "segments", "part.parquet")
        if self.plan:
            self.store.write_part(pa.Table.from_pylist(self.plan, schema=PLAN), "runs", RUN, "plan", "00000.parquet")
        self.summary = self._summary(seconds, scored) | summary
        config = {
            "store": "/data/store",
            "engine": {"kind": "vllm", "model": "nano"},
            "reading": {"segment_tokens": 400},
        }
        Table(self.store, "runs").append(
            [
                dict(
                    corpus=CORPUS,
                    run_id=RUN,
                    kind=kind,
                    status="completed",
                    started_at=START,
                    ended_at=START + timedelta(seconds=seconds),
                    config=json.dumps(config),
                    summary=json.dumps(self.summary),
                )
            ]
        )
        lines = [self._progress(t, seconds) for t in range(seconds + 1)] if self.summary["segments"] else []
        self.store.write_bytes(
            "".join(json.dumps(line) + "\n" for line in lines).encode(), "runs", RUN, "progress.jsonl"
        )
        return RUN

    def _summary(self, seconds: int, scored: bool) -> dict[str, Any]:
        now = [answer for answer in self.answers if answer["run_id"] == RUN]
        totals = ("segments", "conversations", "prompt_tokens", "cached_tokens", "output_tokens")
        score = [
            dict(metric=m, value=v, n=148, low=v - 0.06, high=v + 0.06)
            for m, v in (("exact match", 0.61), ("f1", 0.744))
        ]
        return {
            "readings": {
                "total": len(self.plan),
                "answered_before": len(self.answers) - len(now),
                "read_now": len(now),
                "failed": len(self.plan) - len(self.answers),
                "found": sum(answer["found"] for answer in self.answers),
            },
            "documents": len({name for row in self.plan for name in row["stream"]}),
            **{key: sum(answer[key] for answer in now) for key in totals},
            "seconds": float(seconds),
            "engine_seconds": 0.9 * seconds,
            "scores": score if scored else None,
            "policy": "memagent-nano",
            "policy_id": "pol-nano",
            "engine": "vllm",
        }

    def _progress(self, t: int, seconds: int) -> dict[str, Any]:
        share = max(0.0, (t - 4) / max(1, seconds - 4)) ** 1.1
        keys = ("segments", "conversations", "prompt_tokens", "cached_tokens", "output_tokens")
        return {"t": float(t), **{key: int(share * self.summary[key]) for key in keys}}

    def _log(
        self,
        reading_id: str,
        places: list[tuple[str, int]],
        memories: dict[int, str],
        *,
        carried: int,
        sure: float | None,
    ) -> None:
        """Log a reading whose reader doubts in the middle, as much as `sure` says."""
        memory = ""
        for step, (name, index) in enumerate(places):
            changed = step in memories
            memory = memories.get(step, memory)
            if step < carried and not changed:
                continue
            kind = "carried" if step < carried else "update"
            doubt = sure if sure is None or step >= len(places) // 2 else 1.0
            turn = _turn(reading_id, step, kind, name, index, memory, changed)
            self.turns.add(replace(turn, confidence=doubt))
        turn = _turn(reading_id, len(places), "answer", "", -1, memory, False)
        self.turns.add(replace(turn, confidence=sure))

    def _count(self, name: str) -> int:
        return -(-len(self._text(name)) // SEGMENT_CHARS)

    def _text(self, name: str) -> str:
        return str(self.by_hash[name]["text"])

    def _evidence(self, name: str, quote: str) -> dict[str, Any]:
        text = self._text(name)
        start = text.index(quote)
        index = start // SEGMENT_CHARS
        low = index * SEGMENT_CHARS
        return dict(
            content_hash=name,
            segment_index=index,
            char_start=low,
            char_end=min(len(text), low + SEGMENT_CHARS),
            quote=quote,
            quote_start=start,
            quote_end=start + len(quote),
            verbatim=True,
        )


def contracts(store: Store, count: int = 50, *, sections: int = 14) -> MadeUpRun:
    """Make a run over `count` contracts with three questions each: right, wrong, not found, reused, failed."""
    run = MadeUpRun(store)
    for n in range(count):
        law, date, text = _contract(n, sections + n % 7)
        name = run.document(f"contract-{n:04d}.txt", text, f"Supply Agreement No. {n + 1}")
        at, first = text.index("governed by") // SEGMENT_CHARS, text.index("signed on") // SEGMENT_CHARS
        clause = f"This Agreement shall be governed by the laws of the State of {law}."
        signed = f"The agreement was signed on {date} at Springfield."
        start = {first: f"Parties: Alpha Metals Inc. and Buyer {n} LLC.\n{signed}"}
        state = "answered" if n % 5 == 4 else "new"
        law_memory = {
            first: "Parties: Alpha Metals Inc.",
            at: f"Parties: Alpha Metals Inc. and Buyer {n} LLC.\n{clause}",
        }
        gold_law = [law if n % 4 else "Utah"]
        if n % 10 == 7:
            run.reading([name], "law", QUESTIONS["law"], "", {}, gold=gold_law, failed="prompt-too-long")
        else:
            run.reading([name], "law", QUESTIONS["law"], law, law_memory, quotes=(clause,), gold=gold_law, state=state)
        run.reading([name], "date", QUESTIONS["date"], date, start, quotes=(signed,), gold=[date], state=state)
        run.reading([name], "cap", QUESTIONS["cap"], "", {}, gold=[""] if n % 3 else None, state=state)
    run.unreadable("/archive/scan.pdf", "encrypted", "the file needs a password")
    return run


def local_store(folder: Path) -> Store:
    """Return a store in a folder."""
    return Store(str(folder / "store"))


def _contract(n: int, sections: int) -> tuple[str, str, str]:
    law = STATES[n % len(STATES)]
    date = f"{1 + n % 28} March {2001 + n % 20}"
    parts = [f"SUPPLY AGREEMENT No. {n + 1}\n\nThe agreement was signed on {date} at Springfield.\n\n"]
    for section in range(1, sections + 1):
        parts.append(_FILLER.format(n=section) * 2)
        if section == sections // 2:
            parts.append(
                f"{section}a. Governing law. This Agreement shall be governed by the laws of the State of {law}. "
                "The courts of that state have jurisdiction.\n\n"
            )
    return law, date, "".join(parts)


def _turn(reading_id: str, step: int, kind: Any, name: str, index: int, memory: str, changed: bool) -> Turn:
    return Turn(
        reading_id=reading_id,
        span=0,
        step=step,
        kind=kind,
        content_hash=name,
        segment_index=index,
        response_ids=[1],
        response=memory,
        memory_ids=[1],
        memory=memory,
        changed=changed,
        prompt_tokens=460,
        cached_tokens=130,
        finish_reason="stop",
        seconds=0.4,
        weight_version="w1",
        carried_from="an-older-reading" if kind == "carried" else "",
    )
