"""Bulk reading against the engine's own throughput: conversations per second of both, on the same prompts, in one run.

python -m benchmarks.ceiling [--documents 96] [--times 5] [--engines 1] [--set key=value ...]
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
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.schemas import PlannedReading
from infra.store.segments import StoredStream, segmented
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


def ends(store: Store, run_id: str) -> list[tuple[str, float, float, str]]:
    """Return the engine's worker, start and end (seconds since the epoch) and kind of each conversation of a run."""
    found = []
    for path in store.list("turns", "bench", run_id):
        worker = path.rsplit("/", 1)[-1].partition("-")[0]
        table = ds.dataset(path, filesystem=store.arrow).to_table(columns=["written_at", "seconds", "kind"])
        for row in table.to_pylist():
            end = row["written_at"].timestamp()
            found.append((worker, end - row["seconds"], end, row["kind"]))
    return found


def pass_rate(turns: list[tuple[str, float, float, str]]) -> tuple[float, float]:
    """Return conversations a second from when all engines are up to the last end, and seconds to the first answer."""
    first: dict[str, float] = {}
    for worker, start, _, _ in turns:
        first[worker] = min(start, first.get(worker, start))
    began = max(first.values())
    counted = [end for _, start, end, _ in turns if start >= began]
    answers = [end for _, _, end, kind in turns if kind == "answer"]
    return len(counted) / (max(counted) - began), min(answers) - min(first.values())


def prompts_of(store: Store, config: Config, run_id: str) -> list[list[int]]:
    """Rebuild the prompts of a run from its turn log."""
    reader = ReaderSpec(config)
    corpus = Corpus(store, "bench")
    plan: list[PlannedReading] = read_plan(corpus, run_id).to_pylist()
    segments = segmented(corpus, reader.tokenizer, reader.reading)
    prompts, question = reader.scheme.prompts, reader.tokenizer.encode(QUESTION)
    table = ds.dataset(store.list("turns", "bench", run_id), filesystem=store.arrow).to_table()
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


async def all_at_once(config: Config, prompts: list[list[int]], engines: int) -> float:
    """Send all prompts at once to engines that run side by side; return conversations per second."""
    reader = ReaderSpec(config)
    sampling = reader.scheme.sampling(reader.reading.memory_tokens)
    running = [reader.make_engine() for _ in range(engines)]
    await asyncio.gather(*(engine.start() for engine in running))
    await asyncio.gather(*(engine.generate(prompts[0][:16], reader.scheme.sampling(1)) for engine in running))
    began = time.monotonic()
    await asyncio.gather(*(running[i % engines].generate(prompt, sampling) for i, prompt in enumerate(prompts)))
    seconds = time.monotonic() - began
    await asyncio.gather(*(engine.stop() for engine in running))
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
    parser.add_argument("--engines", type=int, default=1, help="that read side by side")
    parser.add_argument("--times", type=int, default=5, help="passes; the median share counts")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        documents = Path(name) / "docs"
        make_archive(documents, given.documents, given.longest)

        # An engine that stays would have the prompts of the pass before in its prefix cache.
        sets = ["engine.keep_alive=0", f"pool.min_size={given.engines}", f"pool.max_size={given.engines}", *given.set]

        def config(i: int) -> Config:
            return load_config(sets=sets, store=str(Path(name) / f"store{i}"))

        # The first pass is not counted; it provides the prompts.
        prompts = prompts_of(Store(config(0).store), config(0), read_all(config(0), documents))
        ceilings = [asyncio.run(all_at_once(config(0), prompts, given.engines))]
        shares, paces, firsts = [], [], []
        for i in range(1, given.times + 1):
            turns = ends(Store(config(i).store), read_all(config(i), documents))
            assert len(turns) == len(prompts)
            pace, first = pass_rate(turns)
            ceilings.append(asyncio.run(all_at_once(config(0), prompts, given.engines)))
            # A machine's speed drifts by a sixth in a minute, so a pass is compared with the ceilings around it.
            around = statistics.mean(ceilings[-2:])
            paces.append(pace)
            firsts.append(first)
            shares.append(pace / around)
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
        f"passes {', '.join(f'{share:.2f}' for share in shares)}; engines: {given.engines}, "
        f"{given.documents} documents of 1 to {given.longest} "
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
