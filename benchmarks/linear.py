"""Cost by length: documents of 10, 100 and 1,000 segments, read one at a time by the same engine.

python -m benchmarks.linear [--lengths 10,100,1000] [--set key=value ...]
"""

import argparse
import asyncio
import json
import random
import time

from infra.policies import Reader
from memagent.config import load_config
from memagent.reading import Reading
from memagent.records import Segment

QUESTION = "What is the special magic number for amber-otter?"


class MadeStream:
    """Segments of exactly the configured size, made as they are read."""

    def __init__(self, reader: Reader, count: int, seed: str) -> None:
        self._reader, self._count, self._seed = reader, count, seed
        self._ids = reader.tokenizer.encode("the of and to in report shall party term notice section payment service")

    def __len__(self) -> int:
        return self._count

    async def read(self, start: int, stop: int):
        for i in range(start, stop):
            rng = random.Random(f"{self._seed}-{i}")
            yield Segment("made", i, i, i + 1, "", rng.choices(self._ids, k=self._reader.reading.segment_tokens))


async def measure(reader: Reader, lengths: list[int]) -> list[dict]:
    engine = reader.make_engine()
    await engine.start()
    rows = []
    # The first one warms the engine up and is not kept; no two read the same text, or the prefix cache would help.
    for series, length in enumerate([lengths[0], *lengths]):
        repeats = max(1, lengths[-1] // length // 2)
        began, tokens = time.monotonic(), 0
        for repeat in range(repeats):
            stream = MadeStream(reader, length, f"{series}-{repeat}")
            outcome = await Reading("r", QUESTION, stream, reader.scheme, engine.generate, lambda turn: None).run()
            tokens += outcome.prompt_tokens + outcome.output_tokens
        seconds = time.monotonic() - began
        rows.append(
            {
                "segments": length,
                "repeats": repeats,
                "ms_per_segment": round(1000 * seconds / repeats / length, 2),
                "tokens_per_segment": round(tokens / repeats / length, 2),
            }
        )
    await engine.stop()
    return rows[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="10,100,1000")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    reader = Reader(load_config(sets=given.set))
    for row in asyncio.run(measure(reader, [int(n) for n in given.lengths.split(",")])):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
