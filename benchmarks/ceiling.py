"""Bulk reading against the engine's own throughput: conversations per second of both, on the same prompts, in one run.

python -m benchmarks.ceiling [--documents 96] [--times 5] [--set key=value ...]
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks.record import Row, arguments, result, write
from infra.cluster.session import ray_session
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.plans import read_plan
from infra.tables.rows import PlannedReading
from infra.tables.segments import StoredStream, segmented
from memagent.config import Config, load_config
from memagent.questions import ask as make_question
from pipelines.ask import ask
from pipelines.stages.ingest import ingest

QUESTION = "What is the special magic number for amber-otter?"


def make_archive(folder: Path, documents: int, longest: int, seed: int = 0) -> None:
    """Write documents whose lengths follow a Zipf law (exponent 1.6)."""
    rng = random.Random(seed)
    words = "the of and to in report shall party term notice section payment service schedule agreement".split()
    folder.mkdir(parents=True)
    weights = [1 / k**1.6 for k in range(1, longest + 1)]
    for i in range(documents):
        segments = rng.choices(range(1, longest + 1), weights)[0]
        lines = [" ".join(rng.choices(words, k=12)) + "." for _ in range(segments * 16)]
        (folder / f"doc{i:04}.txt").write_text(" ".join(lines))


def ends(store: Store, run_id: str) -> list[tuple[float, str]]:
    """Return when each conversation of a run ended, in seconds from the first one's start, and its kind."""
    columns = ["written_at", "seconds", "kind"]
    rows = ds.dataset(store.list("turns", "bench", run_id), filesystem=store.fs).to_table(columns=columns).to_pylist()
    began = min(row["written_at"].timestamp() - row["seconds"] for row in rows)
    return [(row["written_at"].timestamp() - began, row["kind"]) for row in rows]


def pass_rate(store: Store, run_id: str) -> tuple[int, float]:
    """Return the number of conversations of a run, and seconds from the first start to the last end."""
    turns = ends(store, run_id)
    return len(turns), max(seconds for seconds, _ in turns)


def prompts_of(store: Store, config: Config, run_id: str) -> list[list[int]]:
    """Rebuild the prompts of a run from its turn log."""
    reader = ReaderSpec(config)
    corpus = Corpus(store, "bench")
    plan: list[PlannedReading] = read_plan(corpus, run_id).to_pylist()
    segments = segmented(corpus, reader.tokenizer, reader.reading)
    prompts, question = reader.scheme.prompts, reader.tokenizer.encode(QUESTION)
    table = ds.dataset(store.list("turns", "bench", run_id), filesystem=store.fs).to_table()
    by_reading: dict[str, list[dict[str, Any]]] = {}
    for row in table.sort_by([("span", "ascending"), ("step", "ascending")]).to_pylist():
        by_reading.setdefault(row["reading_id"], []).append(row)

    async def make() -> list[list[int]]:
        rebuilt = []
        for item in plan:
            stream = StoredStream(store, [segments[h] for h in item["stream"]])
            memory, step = prompts.no_memory, 0
            turns = by_reading[item["answered_by"] or item["reading_id"]]
            async for segment in stream.read(0, len(stream)):
                rebuilt.append(prompts.update(question, memory, segment.token_ids))
                memory, step = turns[step]["memory_ids"], step + 1
            rebuilt.append(prompts.answer(question, memory))
        return rebuilt

    return asyncio.run(make())


async def all_at_once(config: Config, prompts: list[list[int]]) -> float:
    """Send all prompts at once to one engine; return conversations per second."""
    reader = ReaderSpec(config)
    engine, sampling = reader.make_engine(), reader.scheme.sampling(reader.reading.memory_tokens)
    await engine.start()
    await engine.generate(prompts[0][:16], reader.scheme.sampling(1))
    began = time.monotonic()
    await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))
    seconds = time.monotonic() - began
    await engine.stop()
    return len(prompts) / seconds


def read_all(config: Config, documents: Path) -> str:
    """Ingest and read the documents; return the run id."""
    with ray_session(config.ray):
        ingest(Corpus(Store(config.store), "bench"), [str(documents)], config, "ingest")
        return ask("bench", [make_question(QUESTION)], config)["run_id"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=96)
    parser.add_argument("--longest", type=int, default=64)
    parser.add_argument("--times", type=int, default=5, help="passes; the median share counts")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        documents = Path(name) / "docs"
        make_archive(documents, given.documents, given.longest)

        def config(i: int) -> Config:
            return load_config(sets=given.set, store=str(Path(name) / f"store{i}"))

        # The first pass is not counted; it provides the prompts.
        prompts = prompts_of(Store(config(0).store), config(0), read_all(config(0), documents))
        ceilings = [asyncio.run(all_at_once(config(0), prompts))]
        shares, paces, firsts = [], [], []
        for i in range(1, given.times + 1):
            turns = ends(Store(config(i).store), read_all(config(i), documents))
            firsts.append(min(seconds for seconds, kind in turns if kind == "answer"))
            assert len(turns) == len(prompts)
            ceilings.append(asyncio.run(all_at_once(config(0), prompts)))
            # A machine's speed drifts by a sixth in a minute, so a pass is compared with the ceilings around it.
            around = statistics.mean(ceilings[-2:])
            paces.append(len(turns) / max(seconds for seconds, _ in turns))
            shares.append(paces[-1] / around)
            row = {
                "conversations": len(turns),
                "pass_per_second": round(paces[-1], 1),
                "ceilings_per_second": [round(rate, 1) for rate in ceilings[-2:]],
                "share": round(shares[-1], 3),
            }
            print(json.dumps(row), flush=True)
    middle = round(statistics.median(shares), 3)
    print(json.dumps({"median_share": middle}))
    note = (
        f"passes {', '.join(f'{share:.2f}' for share in shares)}; {given.documents} documents of 1 to {given.longest} "
    )
    rows = [
        Row("share of the engine's own pace, the middle pass", middle, n=given.times, note=f"{note}segments"),
        Row("passes, the middle", round(statistics.median(paces), 1), "conversations a second", n=len(prompts)),
        Row(
            "the same prompts handed over all at once, the middle",
            round(statistics.median(ceilings), 1),
            "conversations a second",
            n=len(prompts),
        ),
        Row("first answer once the engine is up, the middle", round(statistics.median(firsts), 1), "s", n=given.times),
    ]
    write(
        result(
            "ceiling", "How close bulk reading comes to the engine", rows, given, number_format=config(0).engine.dtype
        )
    )


if __name__ == "__main__":
    main()
