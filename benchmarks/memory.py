"""Peak memory of a worker by the length of what it reads: 40K tokens against 4M.

    python -m benchmarks.memory [--tokens 40000,4000000] [--set key=value ...]

Each length is read by a worker of its own, in a process of its own, from a store, turn log and all. An engine
that runs in a process of its own (vllm) is measured beside it.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import peak_mb
from infra.cluster.board import Attempt, Board
from infra.cluster.reading_worker import PassSpec, ReadingWorker
from infra.readers import ReaderSpec
from infra.store.buckets import WHOLE
from infra.store.location import Corpus, Store
from infra.store.plans import Block, WorkItem, write_work
from infra.store.schemas import SegmentedRow
from infra.store.segments import segment_range, write_segments
from memagent.config import load_config
from memagent.records import text_hash

QUESTION = "What is the pass number for amber-otter?"


def text_of(reader: ReaderSpec, tokens: int) -> str:
    rng = random.Random(tokens)
    words = "the of and to in report shall party term notice section payment service schedule agreement".split()
    per_word = len(reader.tokenizer.encode(" ".join(words))) / len(words)
    count = int(tokens / per_word)
    lines = [" ".join(rng.choices(words, k=20)) + "." for _ in range(count // 20)]
    lines[len(lines) // 2] = "The pass number for amber-otter is 4829104."
    return "\n".join(lines)


def prepare(url: str, sets: list[str], tokens: int, out: Any) -> None:
    reader = ReaderSpec(load_config(sets=sets, store=url))
    text = text_of(reader, tokens)
    out.put(write_segments(Corpus(Store(url), "c"), [(text_hash(text), text)], reader.tokenizer, reader.reading)[0][0])


def work(url: str, sets: list[str], place: SegmentedRow, out: Any) -> None:
    config = load_config(sets=sets, store=url)
    spec = PassSpec(Corpus(Store(url), "c"), "run", ReaderSpec(config), config)
    item: WorkItem = {
        "reading_id": "r",
        "question_id": "q",
        "question": QUESTION,
        "scope": "document",
        "content_hash": place["content_hash"],
        "item": "r",
        "documents": 1,
        "places": [segment_range(place)],
        "stream": "",
        "past": "",
        "left": place["segments"],
        "carried_from": "",
        "carried_segments": 0,
    }
    conversations = place["segments"] + 1
    block: Block = {
        "file": write_work(Store(url), "run", WHOLE, [item]),
        "first": 0,
        "rows": 1,
        "conversations": conversations,
        "longest": conversations,
    }

    async def run() -> None:
        worker = ReadingWorker(Board(), spec)
        result = await worker.run(block, Attempt())
        assert result["answered"] == 1, result
        await worker.stop()

    began = time.monotonic()
    asyncio.run(run())
    files = Store(url).list("answers")
    outcome = pq.read_table(files[0]).to_pylist()[0]
    peaks = [peak_mb(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024]
    kept = {k: outcome[k] for k in ("answer", "segments", "prompt_tokens")}
    measured = {"peak_mb": peaks[0], "engine_peak_mb": peaks[1], "seconds": time.monotonic() - began}
    out.put({**kept, **{name: round(value, 1) for name, value in measured.items()}})


def measure(tokens: int, sets: list[str]) -> dict[str, Any]:
    """Read a document of so many tokens in a fresh process; return its peak memory and what it did."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        place = _in_process(context, prepare, folder, sets, tokens, answers)
        result = _in_process(context, work, folder, sets, place, answers)
        parts = len(list(Path(folder).rglob("turns/**/*.parquet")))
    return {"tokens": place["tokens"], **result, "turn_log_parts": parts}


def _in_process(context: Any, target: Any, *given: Any) -> dict[str, Any]:
    process = context.Process(target=target, args=given)
    process.start()
    answer: dict[str, Any] = given[-1].get(timeout=3600)
    process.join()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="40000,4000000")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    sets = given.set or ["engine.kind=scripted"]
    kind = load_config(sets=sets).engine.kind
    reader = "scripted reader" if kind == "scripted" else kind
    rows = []
    for tokens in given.tokens.split(","):
        measured = measure(int(tokens), sets)
        print(json.dumps(measured), flush=True)
        length = f"{measured['tokens'] / 1e6:.1f}M" if measured["tokens"] >= 1e6 else f"{measured['tokens'] / 1e3:.0f}K"
        note = f"{measured['segments']:,} segments"
        rows.append(Row(f"worker, {reader}, {length} tokens", measured["peak_mb"], "MB", note=note))
        if kind == "vllm":
            rows.append(Row(f"largest process of the engine, {length} tokens", measured["engine_peak_mb"], "MB"))
    write(result("memory", "Memory by length", rows, given))


if __name__ == "__main__":
    main()
