"""The report of an evaluation: scores, plots and causes of failure in one self-contained HTML file."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from infra.store.location import Corpus, Store
from infra.store.schemas import ResultRow, ScoreRow
from infra.store.turns import resume_points
from memagent.records import Json, Turn
from pipelines.evaluate import run_results, score_table
from pipelines.report import plots as pictures
from pipelines.report.html import embedded, sheet, write_sheet
from pipelines.views.formatting import plain
from pipelines.views.memory import MemoryHistory, ShownChanges, histories

_READINGS_AT_ONCE = 20
_ROOM = 8 * 2**20
"""Characters of all memories of a page."""
_CHANGES_MOST = 24
"""Most changes of a memory that are shown of one sample."""
_TEXT_CHARS = 4_000


def shown_samples(corpus: Corpus, rows: Sequence[ResultRow], most: int) -> list[Json]:
    """Return at most `most` samples as the template shows them, wrong ones first, with memories while there is room.

    A memory is a `ShownChanges`; None: the log has none, or the page has no room left for it.
    """
    wrong_first = sorted(enumerate(rows, 1), key=lambda numbered: not numbered[1]["failure"])[:most]
    samples: list[Json] = []
    room = _ROOM
    for start in range(0, len(wrong_first), _READINGS_AT_ONCE):
        batch = wrong_first[start : start + _READINGS_AT_ONCE]
        logs = histories(corpus, [row["reading_id"] for _, row in batch]) if room > 0 else {}
        for number, row in batch:
            memory = _memory(logs[row["reading_id"]], row["lost_step"]) if row["reading_id"] in logs else None
            room -= sum(len(part.text) for change in memory.changes for part in change.parts) if memory else 0
            samples.append(_sample(number, row) | {"memory": memory if room > 0 else None})
    return samples


def _memory(history: MemoryHistory, lost_step: int | None) -> ShownChanges:
    """Return how a memory changed; of many changes those around the one that lost the answer, else the last ones."""
    changes = history.changes
    lost = next((number for number, change in enumerate(changes) if change.step == lost_step), len(changes))
    return history.shown(_CHANGES_MOST, lost - _CHANGES_MOST // 2)


def _sample(number: int, row: ResultRow) -> Json:
    answer = "(failed)" if row["answer"] is None else row["answer"] or "not found"
    lost = f", at segment {row['lost_segment'] + 1:,}" if row["lost_segment"] is not None else ""
    return {
        "anchor": f"sample-{number}",
        "sample_id": plain(row["sample_id"]),
        "wrong": bool(row["failure"]),
        "cause": f"{row['failure']}{lost}" if row["failure"] else "right",
        "question": plain(row["question"])[:_TEXT_CHARS],
        "gold": [plain(gold)[:_TEXT_CHARS] or "not in the text" for gold in row["gold"]],
        "answer": plain(answer)[:_TEXT_CHARS],
        "score": f"{row['score']:.2f}",
        "facts": " · ".join(_facts(row)),
    }


def _facts(row: ResultRow) -> Iterator[str]:
    yield row["task"]
    if row["length"]:
        yield f"{row['length']:,} tokens of text"
    if row["depth"] is not None:
        yield f"the fact at {row['depth']:.0%}"
    if row["segments"]:
        yield f"{row['segments']:,} segments"
    if row["tokens"]:
        yield f"{row['tokens']:,} tokens read and written"
    yield f"reading {row['reading_id']}"


_SAMPLES_MOST = 300
_PLACES = 20
_MEMORIES_MOST = 200
"""Most readings whose memories are plotted."""
_MEANINGS = {
    "never noted": "no memory ever held what was asked",
    "noted and overwritten": "a memory held it and a later one did not",
    "noted and not used": "the last memory holds it, the answer does not",
    "made up": "the text does not say, but an answer was given",
    "reading failed": "the reading ended with an error; see the run's report",
}
_TITLES = {
    "accuracy-by-length": "Accuracy by length",
    "accuracy-by-depth": "Accuracy by depth and length",
    "cost-by-length": "Cost by length",
    "memory-by-share": "The memory over the reading",
    "reliability": "Right answers by confidence",
}
_NOTES = {
    "reliability": "Answers in five groups by confidence. Off the grey line, confidence is no probability.",
    "accuracy-by-length": "Dashed: published by the paper for other models on RULER-HQA, another task.",
    "cost-by-length": "Seconds are a reading's share of the engine's time, split evenly among requests in flight.",
}


def draw(store: Store, run_ids: Sequence[str], folder: Path) -> list[Path]:
    """Plot evaluations; return the files.

    Runs of one version and method at different lengths make one line; runs at the same lengths make a line each.

    Raises UsageError: a run is not an evaluation.
    """
    runs = {row["run_id"]: row for row in score_table(store).to_pylist()}
    rows = []
    seen: set[tuple[str, int]] = set()
    for run_id in run_ids:
        results: list[ResultRow] = run_results(store, run_id).to_pylist()
        results = [row for row in results if row["length"] > 0]
        name = _name(runs[run_id])
        if len({runs[one]["policy_id"] for one in run_ids if _name(runs[one]) == name}) > 1:
            name += f"@{runs[run_id]['policy_id'].rpartition('@')[2][:6]}"
        lengths = {(name, row["length"]) for row in results}
        name += f" [{run_id[-6:]}]" if lengths & seen else ""
        seen |= lengths
        rows += [{**row, "method": name} for row in results]
    files: list[Path] = []
    if rows:
        files += pictures.accuracy_by_length(rows, folder)
        if any(row["tokens"] and row["seconds"] for row in rows):
            files += pictures.cost_by_length(rows, folder)
        if len({row["method"] for row in rows if row["depth"] is not None}) == 1:
            files += pictures.accuracy_by_depth(rows, folder)
    if len(run_ids) == 1:
        every: list[ResultRow] = run_results(store, run_ids[0]).to_pylist()
        if sum(row["confidence"] is not None for row in every) >= pictures.LEAST_KNOWN:
            files += pictures.reliability(every, folder)
    if len(run_ids) == 1 and (memories := _memories(Corpus(store, runs[run_ids[0]]["corpus"]), run_ids[0])):
        files += pictures.memory_by_share(memories, folder)
    return files


def write_evaluation(store: Store, run_id: str, path: str | Path) -> Path:
    """Write the report of one evaluation atomically.

    Raises:
        UsageError: the run is not an evaluation.
        OSError: the file cannot be written.
    """
    return write_sheet(Path(path), evaluation_page(store, run_id))


def evaluation_page(store: Store, run_id: str) -> str:
    """Return the report of one evaluation as HTML."""
    rows: list[ResultRow] = run_results(store, run_id).to_pylist()
    scores: list[ScoreRow] = [row for row in score_table(store).to_pylist() if row["run_id"] == run_id]
    counts = Counter(row["failure"] for row in rows if row["failure"])
    samples = shown_samples(Corpus(store, scores[0]["corpus"]), rows, _SAMPLES_MOST)
    return sheet(
        "evaluation.html.j2",
        run_id=run_id,
        suite=scores[0]["suite"],
        what=_summary(scores[0], len(rows)),
        scores=scores,
        pictures=embedded(partial(draw, store, [run_id]), _TITLES, _NOTES),
        causes=[{"name": k, "count": n, "meaning": _MEANINGS[k]} for k, n in counts.most_common()],
        samples=samples,
        wrong=sum(counts.values()),
        total=len(rows),
    )


def _memories(corpus: Corpus, run_id: str) -> list[dict[str, float]]:
    """Return the memory's length at `_PLACES` points of each span of some readings, as rows (share, tokens)."""
    readings = sorted(row["reading_id"] for row in run_results(corpus.store, run_id).to_pylist() if row["segments"])
    rows = []
    for turns in resume_points(corpus, readings[:_MEMORIES_MOST]).values():
        spans: dict[int, list[Turn]] = defaultdict(list)
        for turn in turns:
            if turn.kind in ("update", "carried"):
                spans[turn.span].append(turn)
        for span in spans.values():
            rows += [{"share": share, "tokens": tokens} for share, tokens in over_the_span(span)]
    return rows


def over_the_span(turns: Sequence[Turn]) -> list[tuple[float, int]]:
    """Return (share of the span read so far, tokens of the memory) at evenly spaced points.

    `turns` are the span's first and last and those that changed the memory, in order; between them it is constant.
    """
    steps = [turn.step for turn in turns]
    shares = [(index + 0.5) / _PLACES for index in range(_PLACES)]
    indices = [max(0, bisect_right(steps, share * (steps[-1] + 1) - 1) - 1) for share in shares]
    return [(share, len(turns[i].memory_ids)) for share, i in zip(shares, indices, strict=True)]


def _name(row: ScoreRow) -> str:
    parts = [str(row["policy_id"]).partition("@")[0]]
    parts += [row["method"]] if row["method"] != "memagent" else []
    return ", ".join([*parts, *([row["control"]] if row["control"] else [])])


def _summary(row: ScoreRow, n: int) -> str:
    parts = [f"{n} samples", f"policy {row['policy_id']}", f"method {row['method']}", f"seed {row['seed']}"]
    if row["control"]:
        parts.append(f'control {row["control"]} (right would be "not found")')
    suite = json.loads(row["samples"])
    if suite["kinds"]:
        parts.append(", ".join(suite["kinds"]))
    return " · ".join([*parts, f"run {row['run_id']}"])
