"""From the tables to one HTML file.

Everything that comes from documents, questions or models travels as JSON in script elements that are
not run, and the page's own script turns it into text nodes. The content security policy names the
hashes of that script and of the style sheet: nothing else runs, and nothing is fetched.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from infra.store import Store
from pipelines.display import duration, number, percent, plain
from pipelines.report.data import Row, Run, load_failures, load_progress, load_rows, load_run, load_titles
from pipelines.report.details import Details, gather

LIMIT_BYTES = 20 * 2**20
"""A file that opens quickly and passes as an attachment."""
_ROWS_SHARE = 0.5
"""Share of the limit for the table of answers."""
_FAILURES_MOST = 1_000
_SCRIPTS = ("dom.js", "diff.js", "table.js", "reading.js", "document.js", "chart.js", "main.js")


def page(store: Store, run_id: str, limit: int) -> str:
    """Return the report of a run as HTML; see `pipelines.report.build`."""
    run = load_run(store, run_id)
    failures = load_failures(store, run)
    rows = load_rows(store, run, failures)
    titles = load_titles(store, run, _hashes(rows))
    tables = _Tables(titles)
    listed = tables.take(rows, int(limit * _ROWS_SHARE))
    data: dict[str, Any] = {
        "readings": len(rows),
        "corpus": run.corpus,
        "kind": run.kind,
        "progress": load_progress(store, run_id),
        "failures": [_failure(failure, run) for failure in failures[:_FAILURES_MOST]],
        "failureCounts": _failure_counts(failures, run),
    }
    style, script = _asset("report.css"), _script()
    frame = len(style) + len(script) + len(embed([data, tables.data()])) + 100_000
    chars = {content_hash: row["chars"] or 0 for content_hash, row in titles.items()}
    details = gather(store, run, listed, chars, max(0, limit - frame - 200 * len(listed)))
    readings = [(i, embed(_reading(row, details, tables))) for i, row in enumerate(listed) if row.answer]
    documents = [(tables.document(name), embed(passages)) for name, passages in details.documents.items()]
    data |= tables.data()
    data["leftOut"] = {
        "rows": len(rows) - len(listed),
        "memories": details.memories_left_out,
        "documents": details.documents_left_out,
        "limit": _size(limit),
    }
    html: str = _environment().from_string(_asset("template.html.j2")).render(
        run=run,
        facts=_facts(run, rows, failures),
        scores=run.summary.get("scores") or [],
        provenance=_provenance(run, rows),
        policies=Counter(row.answer["policy_id"] for row in rows if row.answer).most_common(),
        configs=Counter(row.answer["config_hash"] for row in rows if row.answer).most_common(),
        settings=list(_flat(run.config)),
        data=embed(data),
        readings=readings,
        documents=documents,
        style=Markup(style),  # noqa: S704  our own file
        script=Markup(script),  # noqa: S704
        style_hash=_sha(style),
        script_hash=_sha(script),
    )
    return html


def embed(value: Any) -> Markup:
    """Write JSON that can stand in a script element, whatever the texts in it hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  no character that HTML gives a meaning is left


class _Tables:
    """Rows that share their documents and questions by number."""

    def __init__(self, titles: dict[str, dict[str, Any]]) -> None:
        self._titles = titles
        self._documents: dict[str, int] = {}
        self._questions: dict[tuple[str, str], int] = {}
        self._document_rows: list[dict[str, Any]] = []
        self._question_rows: list[dict[str, Any]] = []
        self._rows: list[list[Any]] = []

    def take(self, rows: list[Row], room: int) -> list[Row]:
        """Add rows until `room` bytes are used; return those that were added."""
        used = 0
        for at, row in enumerate(rows):
            self._rows.append(self._row(row))
            used += len(json.dumps(self._rows[-1], ensure_ascii=False).encode("utf-8", "surrogatepass")) + 1
            if used > room:
                self._rows.pop()
                return rows[:at]
        return rows

    def document(self, content_hash: str, plan: dict[str, Any] | None = None) -> int:
        """Return the number of a document, by content hash."""
        if content_hash not in self._documents:
            known = self._titles.get(content_hash) or {}
            name = known.get("doc_id") or (plan or {}).get("doc_id") or content_hash
            title = known.get("title") or (plan or {}).get("title") or ""
            self._documents[content_hash] = len(self._document_rows)
            self._document_rows.append(
                {
                    "id": name,
                    "title": title if title != name else "",
                    "hash": content_hash,
                    "source": known.get("source") or "",
                    "chars": known.get("chars"),
                }
            )
        return self._documents[content_hash]

    def data(self) -> dict[str, Any]:
        """Return what the page's script reads."""
        return {"documents": self._document_rows, "questions": self._question_rows, "rows": self._rows}

    def _row(self, row: Row) -> list[Any]:
        plan, answer = row.plan, row.answer or {}
        key = (plan["question_id"], plan["question"])
        if key not in self._questions:
            self._questions[key] = len(self._question_rows)
            self._question_rows.append({"id": key[0], "text": key[1]})
        return [
            row.reading_id,
            -1 if plan["scope"] == "archive" else self.document(plan["content_hash"], plan),
            self._questions[key],
            answer.get("answer", ""),
            int(answer.get("found") or False),
            plan["gold"],
            row.right,
            plan["segments"],
            len(answer.get("evidence") or []),
            row.state,
            len(plan["stream"] or []),
            (row.failure or {}).get("reason", ""),
        ]


def _reading(row: Row, details: Details, tables: _Tables) -> dict[str, Any]:
    answer = row.answer or {}
    timeline = details.memories.get(row.reading_id)
    changes = [
        {**change, "document": tables.document(change["document"]) if change["document"] else -1}
        for change in (timeline or {}).get("changes", [])
    ]
    evidence = [{**spot, "content_hash": tables.document(spot["content_hash"])} for spot in answer["evidence"] or []]
    kept = (
        "policy_id", "config_hash", "run_id", "answered_at", "carried_from", "carried_segments", "content_hash",
        "segments", "conversations", "prompt_tokens", "cached_tokens", "output_tokens", "seconds",
    )  # fmt: skip
    return {
        "evidence": evidence,
        "timeline": None if timeline is None else {**timeline, "changes": changes},
        "origin": {key: answer[key] for key in kept},
    }


def _hashes(rows: list[Row]) -> set[str]:
    hashes = {row.plan["content_hash"] for row in rows if row.plan["scope"] != "archive"}
    for row in rows:
        hashes.update(row.plan["stream"] or [])
    return hashes


def _failure(failure: dict[str, Any], run: Run) -> dict[str, Any]:
    kept = {key: failure[key] or "" for key in ("stage", "item", "reason", "detail")}
    kept["detail"] = kept["detail"][:2_000]
    return {**kept, "mine": failure["run_id"] == run.run_id, "at": _when(failure["at"])}


def _failure_counts(failures: list[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    counts = Counter((f["stage"], f["reason"], f["run_id"] == run.run_id) for f in failures)
    return [
        {"stage": stage, "reason": reason, "mine": mine, "count": count}
        for (stage, reason, mine), count in counts.most_common()
    ]


def _facts(run: Run, rows: list[Row], failures: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the figures at the head of the page: label, value, note."""
    said = run.summary
    counts = said.get("readings") or {}
    total = counts.get("total", len(rows))
    found = counts.get("found", sum(bool(row.answer and row.answer["found"]) for row in rows))
    before = counts.get("answered_before", sum(row.state == "reused" for row in rows))
    failed = counts.get("failed", sum(row.state == "failed" for row in rows))
    prompt, cached, output = (said.get(key) or 0 for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
    seconds = said.get("seconds") or 0.0
    other = sum(failure["stage"] != "read" for failure in failures)
    return [
        {"label": "Documents", "value": number(said.get("documents") or 0), "note": "", "tone": ""},
        {
            "label": "Readings",
            "value": number(total),
            "note": f"{number(counts.get('read_now', 0))} read in this run, {number(before)} reused",
            "tone": "",
        },
        {
            "label": "Answer found",
            "value": percent(found, total),
            "note": f"{number(found)} of {number(total)} readings",
            "tone": "",
        },
        {
            "label": "Failures",
            "value": number(failed),
            "note": (f"{number(other)} more in the corpus' earlier stages" if other else "readings without an answer"),
            "tone": "bad" if failed else "",
        },
        {
            "label": "Tokens",
            "value": number(prompt + output),
            "note": f"{number(prompt)} read, {number(output)} written",
            "tone": "",
        },
        {
            "label": "Prefix cache",
            "value": percent(cached, prompt),
            "note": "of the tokens read came from the cache" if prompt else "no tokens read",
            "tone": "",
        },
        {
            "label": "Time",
            "value": duration(seconds),
            "note": f"{number(said.get('segments') or 0)} segments"
            + (f", {(said.get('segments') or 0) / seconds:,.1f} a second" if seconds else ""),
            "tone": "",
        },
    ]


def _provenance(run: Run, rows: list[Row]) -> list[tuple[str, str]]:
    said = run.summary
    pairs = [
        ("Run", run.run_id),
        ("Kind", run.kind),
        ("Status", run.status),
        ("Corpus", run.corpus),
        ("Started", _when(run.started_at)),
        ("Ended", _when(run.ended_at)),
        ("Policy", str(said.get("policy") or "")),
        ("Policy id", str(said.get("policy_id") or "")),
        ("Engine", str(said.get("engine") or "")),
        ("Engine time", duration(said["engine_seconds"]) if said.get("engine_seconds") else ""),
        ("Conversations", number(said.get("conversations") or 0)),
        ("Readings in the plan", number(len(rows))),
    ]
    return [(label, value) for label, value in pairs if value]


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "when": _when, "number": number, "figure": _figure}
    return environment


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) > 1 else f"{value:.3f}"


def _when(value: datetime | None) -> str:
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def _size(count: int) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**19 else f"{count / 2**10:.3g} KiB"


def _asset(name: str) -> str:
    return (files("pipelines.report") / name).read_text(encoding="utf-8")


def _script() -> str:
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _sha(text: str) -> str:
    """Return the hash that a content security policy wants for the text of an inline element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
