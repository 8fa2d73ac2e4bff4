"""Cost by length: documents of 10, 100 and 1,000 segments, read one conversation at a time by the same engine.

    python -m benchmarks.linear [--lengths 10,100,1000] [--slice 20] [--set key=value ...]

The lengths alternate, a slice of conversations each, so that drifts of the machine's speed affect all equally.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.record import Row, arguments, result, write
from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.reading.conversations import ReadingRequest
from memagent.reading.engine import Completion, Engine, Sampling
from memagent.reading.loop import Reading
from memagent.records import Segment

QUESTION = "What is the special magic number for amber-otter?"


class MadeStream:
    """Segments of exactly the configured size, made as they are read."""

    def __init__(self, reader: ReaderSpec, count: int, seed: str) -> None:
        self._reader, self._count, self._seed = reader, count, seed
        self._ids = reader.tokenizer.encode("the of and to in report shall party term notice section payment service")

    def __len__(self) -> int:
        return self._count

    async def read(self, start: int, stop: int) -> AsyncIterator[Segment]:
        for i in range(start, stop):
            rng = random.Random(f"{self._seed}-{i}")
            yield Segment(
                "made",
                i,
                i,
                char_end=i + 1,
                text="",
                token_ids=rng.choices(self._ids, k=self._reader.reading.segment_tokens),
            )


@dataclass
class Turns:
    """Measures one length while it holds the engine; after a slice of conversations the next length gets it."""

    engine: Engine
    lock: asyncio.Lock
    """Shared by the lengths; waiters are served in order, so that they alternate."""
    slice: int
    conversations: int = 0
    tokens: int = 0
    seconds: float = 0.0
    _began: float = field(default=0.0, init=False)

    async def __aenter__(self) -> None:
        await self.lock.acquire()
        self._began = time.monotonic()

    async def __aexit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._began
        self.lock.release()

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        if self.conversations and self.conversations % self.slice == 0:
            await self.__aexit__()
            await self.__aenter__()
        self.conversations += 1
        return await self.engine.generate(ids, sampling, priority)


async def read(reader: ReaderSpec, turns: Turns, length: int, segments: int, seed: str) -> dict[str, float]:
    """Read documents of one length, `segments` segments in all; all texts differ, to defeat the prefix cache."""
    async with turns:
        for document in range(segments // length):
            stream = MadeStream(reader, length, f"{seed}-{length}-{document}")
            outcome = await Reading(
                ReadingRequest("r", QUESTION, stream), reader.scheme, turns.generate, lambda turn: None
            ).run()
            turns.tokens += outcome.prompt_tokens + outcome.output_tokens
    return {
        "segments": length,
        "documents": segments // length,
        "ms_per_segment": round(1000 * turns.seconds / segments, 2),
        "tokens_per_segment": round(turns.tokens / segments, 2),
    }


async def measure(reader: ReaderSpec, lengths: list[int], slice: int) -> list[dict[str, float]]:
    engine = reader.make_engine()
    await engine.start()
    lock = asyncio.Lock()
    await read(reader, Turns(engine, lock, slice), lengths[0], segments=5 * lengths[0], seed="warm-up")
    rows = await asyncio.gather(
        *(read(reader, Turns(engine, lock, slice), length, segments=max(lengths), seed="counted") for length in lengths)
    )
    await engine.stop()
    return list(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="10,100,1000")
    parser.add_argument("--slice", type=int, default=20, help="conversations until the next length has its turn")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    config = load_config(sets=given.set)
    reader = ReaderSpec(config)
    rows = asyncio.run(measure(reader, [int(n) for n in given.lengths.split(",")], given.slice))
    kept = []
    for row in rows:
        share = round(row["ms_per_segment"] / rows[-1]["ms_per_segment"], 3)
        print(json.dumps(row | {"against_the_longest": share}))
        length, longest = (f"{entry['segments']:,}" for entry in (row, rows[-1]))
        if row is not rows[-1]:
            kept.append(Row(f"time a segment, of {length} segments against of {longest}", share))
        kept.append(Row(f"time a segment, of {length} segments", row["ms_per_segment"], "ms", n=int(row["documents"])))
        kept.append(Row(f"tokens a segment, of {length} segments", row["tokens_per_segment"]))
    write(result("linear", "Cost by length", kept, given, number_format=config.engine.dtype))


if __name__ == "__main__":
    main()
