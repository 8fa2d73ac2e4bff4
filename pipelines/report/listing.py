"""The readings as rows of numbers and texts, documents and questions shared by number."""

from collections.abc import Mapping
from typing import Any

from infra.tables.rows import DocumentRow, PlannedReading
from pipelines.report.data import Row
from pipelines.report.embed import size

_ORIGIN = (
    "policy_id",
    "config_hash",
    "run_id",
    "answered_at",
    "carried_from",
    "carried_segments",
    "content_hash",
    "conversations",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "seconds",
)


class Listing:
    """Collects rows in the shape that ``dom.js`` reads (its FIELDS)."""

    def __init__(self, titles: Mapping[str, DocumentRow]) -> None:
        """Take titles of documents by content hash; see `pipelines.report.data.load_titles`."""
        self._titles = titles
        self._numbers: dict[str, int] = {}
        self._questions: dict[tuple[str, str], int] = {}
        self.data: dict[str, list[Any]] = {"documents": [], "questions": [], "rows": []}

    def take(self, rows: list[Row], room: int) -> list[Row]:
        """Add rows while they and what stands behind their answers take at most `room` bytes; return these."""
        used = 0
        for at, row in enumerate(rows):
            line = self._row(row)
            used += size(line) + (size(self.reading(row)) if row.answer else 0)
            if used > room:
                return rows[:at]
            self.data["rows"].append(line)
        return rows

    def document(self, content_hash: str, plan: PlannedReading | None = None) -> int:
        """Return the number of a document."""
        if content_hash not in self._numbers:
            self._numbers[content_hash] = len(self._numbers)
            known = self._titles.get(content_hash)
            name = (plan and plan["doc_id"]) or (known and known["doc_id"]) or content_hash
            title = (plan and plan["title"]) or (known and known["title"]) or ""
            self.data["documents"].append(
                {
                    "id": name,
                    "title": title if title != name else "",
                    "source": (known and known["source"]) or "",
                    "chars": known["chars"] if known else None,
                }
            )
        return self._numbers[content_hash]

    def reading(self, row: Row, timeline: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what is seen when an answered reading is opened."""
        if timeline is not None:
            changes = [
                {**change, "document": self.document(change["document"]) if change["document"] else -1}
                for change in timeline["changes"]
            ]
            timeline = {**timeline, "changes": changes}
        evidence = [{**spot, "content_hash": self.document(spot["content_hash"])} for spot in row.evidence]
        known = row.answer.items() if row.answer else ()
        origin = {key: value for key, value in known if key in _ORIGIN and value not in (None, "")}
        return {"evidence": evidence, "timeline": timeline, "origin": origin}

    def _row(self, row: Row) -> list[Any]:
        plan, answer = row.plan, row.answer
        key = (plan["question_id"], plan["question"])
        if key not in self._questions:
            self._questions[key] = len(self._questions)
            self.data["questions"].append({"id": key[0], "text": key[1]})
        return [
            row.reading_id,
            -1 if plan["scope"] == "archive" else self.document(plan["content_hash"], plan),
            self._questions[key],
            answer["answer"] if answer else "",
            int(answer["found"] or False) if answer else 0,
            plan["gold"],
            row.right,
            plan["segments"],
            len(row.evidence),
            row.state,
            len(plan["stream"] or []),
            row.failure["reason"] if row.failure else "",
        ]
