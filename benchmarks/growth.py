"""Growth: after one sentence is appended to every document, a digest does again only what changed.

    python -m benchmarks.growth --data FOLDER [--set key=value ...]

FOLDER holds gold.jsonl and contracts/. Three digests of all of them: the first; one after the sentence is
appended to each; and one of the grown archive in a fresh store. What must be done again is counted here
from the texts alone: the segments from the first that differs on, and one answer, for each reading.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import Row, arguments, result, write
from infra.readers import ReaderSpec
from infra.store.corpora import remember
from infra.store.documents import current_documents, document_texts
from infra.store.location import Corpus, Store
from infra.store.runs import RunSummary
from memagent.config import Config, load_config
from memagent.evaluation.contracts import CATEGORIES, QUESTIONS
from memagent.reading.segmenting import segments
from memagent.records import Question
from pipelines.ask import digest
from pipelines.io.answers import answer_table

SENTENCE = "\n\nThe parties met once more after the signature, and nothing of the above was changed by it.\n"
ASKED = [Question(category, QUESTIONS[category][0]) for category in CATEGORIES]
SHOWN = ("segments", "conversations", "carried_segments", "engine_seconds", "seconds", "stage_seconds")


def digested(config: Config, folder: Path) -> tuple[RunSummary, dict[tuple[str, str], tuple[Any, Any, str]]]:
    """Digest the folder; return the run's summary and (document, question) -> what was answered."""
    remember(Corpus(Store(config.store), "contracts"), sources=[str(folder)])
    summary = digest("contracts", ASKED, config)
    rows = answer_table(config, "contracts", summary["run_id"])
    said = {
        (row["document"], row["question_id"]): (row["answer"], row["found"], json.dumps(row["evidence"], default=str))
        for row in rows
    }
    return summary, said


def cuts(config: Config) -> dict[str, list[tuple[int, ...]]]:
    """Cut every present document again; return its segments' token ids.

    Documents of one content are read once, and count once: the key is the first of their ids.
    """
    store, reader = Store(config.store), ReaderSpec(config)
    rows = current_documents(Corpus(store, "contracts"), ["doc_id", "content_hash"]).to_pylist()
    rows = list(
        {row["content_hash"]: row for row in sorted(rows, key=lambda row: row["doc_id"], reverse=True)}.values()
    )
    texts = dict(document_texts(Corpus(store, "contracts"), [row["content_hash"] for row in rows]))
    size, boundary = reader.reading.segment_tokens, reader.reading.boundary
    return {
        row["doc_id"]: [
            tuple(s.token_ids)
            for s in segments(
                row["content_hash"],
                texts[row["content_hash"]],
                reader.tokenizer,
                segment_tokens=size,
                boundary=boundary,
            )
        ]
        for row in rows
    }


def changed(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> int:
    """Return how many segments of `after` there are from the first on that is not in `before`."""
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    return len(after) - same


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "contracts"
        shutil.copytree(given.data / "contracts", folder)
        config = load_config(sets=given.set, store=f"{name}/store")
        first, _ = digested(config, folder)
        before = cuts(config)
        for path in sorted(folder.rglob("*.txt")):
            with path.open("a", encoding="utf-8") as file:
                file.write(SENTENCE)
        second, grown = digested(config, folder)
        after = cuts(config)
        fresh, anew = digested(load_config(sets=given.set, store=f"{name}/fresh"), folder)
    for title, summary in (("first", first), ("after growth", second), ("from the start", fresh)):
        print(
            json.dumps({"digest": title} | {key: value for key, value in summary.items() if key in SHOWN}), flush=True
        )
    due = len(ASKED) * sum(changed(before[doc], after[doc]) + 1 for doc in after)
    differing = sum(grown.get(key) != what for key, what in anew.items())
    print(
        json.dumps(
            {
                "documents": len(after),
                "readings": len(anew),
                "conversations_due": due,
                "conversations_done": second["conversations"],
                "share_of_first": round(second["conversations"] / first["conversations"], 4),
                "answers_that_differ_from_a_reading_from_the_start": differing,
            }
        )
    )
    share = f"{second['conversations'] / first['conversations']:.1%} of the first digest; {due:,} were due"
    rows = [
        Row("conversations done again", second["conversations"], n=first["conversations"], note=share),
        Row("answers and evidence that differ from a reading from the start", differing, n=len(anew)),
    ]
    write(result("growth", "One sentence appended to each document", rows, given))
    raise SystemExit(0 if second["conversations"] == due and not differing else 1)


if __name__ == "__main__":
    main()
