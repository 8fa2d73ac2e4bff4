"""Write docs/results.md, the numbers that users decide by, and docs/results/README.md, the list of all records.

    python -m benchmarks.page

Both are made from the records in docs/results/. To add a number to the page, add a `Line`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.record import FOLDER, ROOT, Result, Row, load

PAGE = ROOT / "docs" / "results.md"
LIST = FOLDER / "README.md"


class Value(NamedTuple):
    """A row of a record, by name and column."""

    row: str
    column: str = ""
    noted: bool = False
    """Show the row's note behind the value."""


@dataclass(frozen=True)
class Line:
    """A line of the page."""

    what: str
    record: str
    """The record's file name without ".json"."""
    values: Mapping[str, Value]
    """Label -> value; the label "" is not shown."""
    command: int | None = None
    """Which of the record's commands ("; " separates them) gives the values; None: all."""


@dataclass(frozen=True)
class Section:
    """A table with a heading and the text before it."""

    title: str
    text: str
    lines: tuple[Line, ...]


_MILLION = "1,000,000 documents"
_GAINS = "training-gains-avx512-two-cores"
SECTIONS = (
    Section(
        "First minutes",
        "From an empty clone to an answer, with the bundled reader.",
        (
            Line(
                "`make setup` in an empty clone, with empty caches",
                "quickstart-avx512-two-cores",
                {"first call": Value("set-up, first call"), "second call": Value("set-up, second call")},
            ),
            Line(
                "`memagent ask` on a folder with one note",
                "quickstart-avx2-two-cores",
                {
                    "first question, engine start included": Value("first question, with the engine's start"),
                    "second question": Value("second question"),
                },
            ),
            Line(
                "`make demo` after set-up",
                "quickstart-avx2-two-cores",
                {"": Value("demo after set-up"), "beside two busy processes": Value("demo beside two busy loops")},
            ),
            Line(
                "The product's own tests",
                "suite-amx-two-cores",
                {
                    "`make check`": Value("make check: lint, strict types, unit tests, two at a time"),
                    "`make test`": Value("make test, three at a time"),
                },
            ),
        ),
    ),
    Section(
        "How well it reads",
        "The bundled reader, memagent-nano, was trained on planted facts (needles) and three kinds of contract\n"
        "clauses. It demonstrates the pipeline; for other questions use [your own model](own-model.md). Shares are\n"
        "right answers, unless a line says otherwise.",
        (
            Line(
                "One planted fact, by tokens of the document",
                "longer-avx512-two-cores",
                {
                    "2,000": Value("9 (2,000)", "nano@rl"),
                    "130,000": Value("544 (130,000)", "nano@rl"),
                    "1,040,000": Value("4,314 (1,040,000)", "nano@rl"),
                    "3,500,000": Value("14,517 (3,500,000)", "nano@rl"),
                },
            ),
            Line(
                "RULER's eight kinds of needles, 8K tokens, and other methods on the same samples",
                "methods-avx512-two-cores",
                {
                    "memagent": Value("memagent", "right"),
                    "BM25": Value("bm25", "right"),
                    "map-reduce": Value("map-reduce", "right"),
                    "truncation": Value("truncate", "right"),
                },
            ),
            Line(
                "Tokens that these answers took",
                "methods-avx512-two-cores",
                {
                    "memagent": Value("memagent", "tokens"),
                    "BM25": Value("bm25", "tokens"),
                    "map-reduce": Value("map-reduce", "tokens"),
                    "truncation": Value("truncate", "tokens"),
                },
            ),
            Line(
                'The answer is not in the document: says "not found"',
                "controls-avx512-two-cores",
                {
                    "needle removed": Value("answer-removed", '"not found"'),
                    "another document": Value("wrong-document", '"not found"'),
                },
            ),
            Line(
                "Contracts that training never saw: governing law",
                "contracts-held-out-avx512-two-cores",
                {
                    "memagent": Value("governing law", "nano@rl"),
                    "one regular expression": Value("governing law", "one regular expression"),
                },
            ),
            Line(
                "The same contracts: other clauses",
                "contracts-held-out-avx512-two-cores",
                {"date": Value("agreement date", "nano@rl"), "title": Value("document name", "nano@rl")},
            ),
            Line(
                'The same contracts, answer removed: says "not found"',
                "contracts-held-out-avx512-two-cores",
                {
                    "law": Value('answer taken out: "not found" for the law', "nano@rl"),
                    "date": Value('answer taken out: "not found" for the date', "nano@rl"),
                    "title": Value('answer taken out: "not found" for the name', "nano@rl"),
                },
            ),
            Line(
                "Questions over prose (RULER qa_1, 8K tokens), never trained on",
                "ruler-avx512-two-cores",
                {"": Value("qa_1")},
            ),
            Line(
                "Pairs of a right and a wrong answer in which the right one has the higher confidence (chance: 50%)",
                "confidence-avx512-two-cores",
                {"": Value("lowest mean of all conversations (the column)")},
            ),
        ),
    ),
    Section(
        "Scale and cost",
        'Lines about reading use the bundled reader; "scripted" ones use an engine without a model, so they\n'
        "measure the pipeline alone.",
        (
            Line(
                "Time per segment, relative to a document of 1,000 segments",
                "linear-avx512-two-cores",
                {
                    "10 segments": Value("time a segment, of 10 segments against of 1,000"),
                    "100 segments": Value("time a segment, of 100 segments against of 1,000"),
                },
            ),
            Line(
                "Speed of bulk reading, relative to the engine given all prompts at once",
                "ceiling-avx512-two-cores",
                {"": Value("share of the engine's own pace, the middle pass")},
            ),
            Line(
                "Read 410 contracts, three questions each (n: conversations)",
                "contracts-cost-avx512-two-cores",
                {"": Value("reading")},
            ),
            Line(
                "Conversations repeated after a sentence was appended to each of them, scripted",
                "growth-avx512-two-cores",
                {"": Value("conversations done again")},
            ),
            Line(
                "Peak memory of a worker by tokens of the document, scripted",
                "memory-avx512-two-cores",
                {
                    "45K": Value("worker, scripted reader, 45K tokens"),
                    "4.5M": Value("worker, scripted reader, 4.5M tokens"),
                },
                command=0,
            ),
            Line(
                "A million documents in a folder, scripted",
                "scale-amx-two-cores",
                {
                    "ingest": Value("ingest", _MILLION),
                    "first digest": Value("first digest", _MILLION),
                    "driver's peak memory": Value("driver's peak memory, first digest", _MILLION),
                },
            ),
            Line(
                "The same: a scheduled run",
                "scale-amx-two-cores",
                {
                    "nothing changed": Value("scheduled run without a change", _MILLION),
                    "1% changed": Value("scheduled run with 1% changed", _MILLION),
                },
            ),
            Line(
                "The same on S3 (SeaweedFS on the same machine)",
                "scale-s3-avx512-two-cores",
                {
                    "first digest": Value("first digest", _MILLION),
                    "driver's peak memory": Value("driver's peak memory, first digest", _MILLION),
                    "1% changed": Value("scheduled run with 1% changed", _MILLION),
                },
            ),
            Line(
                "Speed of several engines relative to one, scripted",
                "cluster-avx512-two-cores",
                {
                    "two": Value("times one engine", "2 engines"),
                    "four": Value("times one engine", "4 engines"),
                },
            ),
            Line(
                "100,000 documents, scripted, beside Ray Data alone, which keeps no memories or evidence",
                "ray-data-avx512-two-cores",
                {
                    "first run, memagent": Value("first run", "memagent"),
                    "first run, Ray Data": Value("first run", "Ray Data"),
                    "1% changed, memagent": Value("scheduled run with 1% changed", "memagent"),
                    "1% changed, Ray Data": Value("scheduled run with 1% changed", "Ray Data"),
                },
            ),
            Line(
                "Review pages with a million answers, 95th percentile",
                "review-avx512-two-cores",
                {
                    "first page, one reviewer": Value("first page", "p95, alone"),
                    "first page, 20 reviewers": Value("first page", "p95, 20 at once"),
                    "verdict, 20 reviewers": Value("verdict, without a pause", "p95, 20 at once"),
                },
            ),
        ),
    ),
    Section(
        "Kill and run again",
        "Processes are killed at random moments, then the same command is run again. Answers are compared with those\n"
        "of an undisturbed run. The engine is the scripted one, unless a line names vLLM.",
        (
            Line(
                "20,000 documents; driver, worker or all killed",
                "scale-kills-avx512-two-cores",
                {
                    "kills": Value("kills", "20,000 documents"),
                    "answers that differ": Value("answers that differ", "20,000 documents"),
                    "conversations repeated": Value("done again", "20,000 documents"),
                },
            ),
            Line(
                "Ray Data alone, killed once half way: conversations repeated",
                "ray-data-avx512-two-cores",
                {"": Value("conversations again after a kill", "Ray Data")},
            ),
            Line(
                "Answers or training steps lost, by cause",
                "faults-avx512-two-cores",
                {
                    "failures of each": Value("driver killed, scripted", "times"),
                    "driver": Value("driver killed, scripted", "lost"),
                    "Ray node": Value("Ray node killed, scripted", "lost"),
                    "S3 server": Value("S3 server killed, scripted", "lost"),
                    "Prefect server": Value("Prefect server killed, scripted", "lost"),
                    "rank of the learner": Value("a rank of the learner killed, scripted", "lost"),
                    "full disk": Value("the store's disk full, scripted", "lost"),
                },
            ),
            Line(
                "Answers that differ with vLLM, by cause",
                "faults-avx512-two-cores",
                {
                    "failures of each": Value("driver killed, vllm", "times"),
                    "driver": Value("driver killed, vllm", "differing"),
                    "worker": Value("worker killed, vllm", "differing"),
                    "engine": Value("engine killed, vllm", "differing"),
                    "Ray node": Value("Ray node killed, vllm", "differing"),
                    "S3 server": Value("S3 server killed, vllm", "differing"),
                },
            ),
            Line(
                "Half an hour of reading, 2% of the files broken",
                "soak-amx-two-cores",
                {
                    "kills": Value("kills"),
                    "documents read": Value("documents read"),
                    "answers that differ": Value("answers that differ from the undisturbed run"),
                    "sources in quarantine": Value("sources in quarantine"),
                },
            ),
        ),
    ),
    Section(
        "Training",
        "![Rollouts and validation over 40 steps, three seeds](learning-curves.png)\n\n"
        "Training by rewards turned `nano@sft` into `nano@rl`. Signs show paired differences in points. Candidates "
        "were still rounded to 16 bits.",
        (
            Line(
                "Planted facts, questions reworded",
                _GAINS,
                {
                    "before": Value("needles, other wordings", "nano@sft"),
                    "after": Value("needles, other wordings", "seed 0, nano@rl", noted=True),
                },
                command=0,
            ),
            Line(
                "Contracts that training never saw, questions reworded",
                _GAINS,
                {
                    "before": Value("contracts, other wordings", "nano@sft"),
                    "after": Value("contracts, other wordings", "seed 0, nano@rl", noted=True),
                },
                command=1,
            ),
            Line(
                "Promotion check, simulated with 108 documents of 20 questions",
                "promotion-avx512-two-cores",
                {
                    "promotes an equal version": Value(
                        "equal: 108 documents, 20 questions each, correlation 0.1", "false promotions"
                    ),
                    "promotes one better by 5 points": Value(
                        "108 documents, 20 questions each", "promoted at +5 points"
                    ),
                },
            ),
            Line(
                "Trained on corrections from the review pages, asked of unseen contracts",
                "review_loop-avx512-two-cores",
                {
                    "before": Value("all unseen: weak reader"),
                    "after": Value("all unseen: candidate"),
                    "difference": Value("all unseen: difference"),
                },
            ),
            Line(
                "Promotion after corrections",
                "contract_loop-avx512-two-cores",
                {
                    "right ones": Value("promoted", "corrections"),
                    "wrong ones": Value("promoted", "poisoned corrections"),
                },
            ),
            Line(
                "Training killed and resumed on S3, compared with an undisturbed one",
                "training-right-avx512-two-cores",
                {
                    "": Value(
                        "SIGKILL at a random step, resumed from recorded rollouts on S3, "
                        "against an undisturbed local run"
                    )
                },
            ),
        ),
    ),
)
"""The page. A line whose record or rows are missing is left out."""
_HEAD = ("what", "value", "record", "command")
_INTRODUCTION = """# Results

The numbers to decide by. `python -m benchmarks.page` makes this page from the [records](results/README.md), which hold
all measurements, with commit, date and machine.

- All were measured on shared machines with two cores and 24 GiB, without a GPU. A record's name says which vector
  instructions the processor has: avx2, avx512 or amx.
- Times vary by a factor of two with the load of such a machine. A time without n is that of one run.
- Square brackets hold 95% intervals.
- Commands run in a checkout after `make setup`. FOLDER behind `--data` holds [CUAD's contracts](nano.md).
"""
_LIST_INTRODUCTION = """# Records

`python -m benchmarks.page` makes this list. Each measurement is a JSON file, written by its benchmark: values,
intervals, command, commit, date and machine. Commands are those of the record's commit; options may have other names
today. [Results](../results.md) has the numbers that decide for most users.
"""


def named() -> dict[str, Result]:
    """Return all records by file name without ".json"."""
    return dict(zip((path.stem for path in sorted(FOLDER.glob("*.json"))), load(), strict=True))


def render(records: Mapping[str, Result]) -> str:
    """Return the page; `records` are by file name."""
    parts = [_INTRODUCTION]
    for section in SECTIONS:
        lines = [cells for line in section.lines if (cells := _cells(line, records))]
        if lines:
            parts += [f"## {section.title}\n", f"{section.text}\n", _table(_HEAD, lines)]
    return "\n".join(parts)


def render_list(records: Mapping[str, Result]) -> str:
    """Return the list of all records."""
    lines = [
        [f"[{name}]({name}.json)", one.title, f"`{_command(one)}`", one.date, one.machine.label]
        for name, one in records.items()
    ]
    return f"{_LIST_INTRODUCTION}\n{_table(['record', 'title', 'command', 'date', 'machine'], lines)}"


def shown(row: Row, noted: bool = False) -> str:
    """Format a value with unit, interval, n and, if `noted`, its note; one run needs no n."""
    text = row.value if isinstance(row.value, str) else f"{row.value:,}"
    text += row.unit if row.unit == "%" else f" {row.unit}".rstrip()
    if row.interval is not None:
        text += " [{}, {}]".format(*(f"{bound:g}" for bound in row.interval))
    behind = [f"n = {row.n:,}"] if row.n not in (None, 1) else []
    behind += [row.note] if noted and row.note else []
    return text + (f" ({', '.join(behind)})" if behind else "")


def _cells(line: Line, records: Mapping[str, Result]) -> list[str]:
    if line.record not in records:
        return []
    one = records[line.record]
    rows = {(row.name, row.column): row for row in one.rows}
    if any((value.row, value.column) not in rows for value in line.values.values()):
        return []
    values = [
        (f"{label}: " if label else "") + shown(rows[value.row, value.column], value.noted)
        for label, value in line.values.items()
    ]
    command = _command(one) if line.command is None else _command(one).split("; ")[line.command]
    return [line.what, "; ".join(values), f"[{line.record}](results/{line.record}.json)", f"`{command}`"]


def _command(one: Result) -> str:
    """Return the record's command without the label of its machine."""
    return re.sub(r" --label '[^']*'", "", one.command)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(_safe(text) for text in row) + " |" for row in rows) + "\n"


def _safe(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def main() -> None:
    records = named()
    PAGE.write_text(render(records), encoding="utf-8")
    LIST.write_text(render_list(records), encoding="utf-8")


if __name__ == "__main__":
    main()
