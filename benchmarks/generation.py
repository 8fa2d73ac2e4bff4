"""How fast samples of RULER's thirteen kinds are made, and how close to the length asked for.

    python -m benchmarks.generation [--lengths 8000,128000,1000000] [--seconds 4] [--kinds A,B]
        [--squad FILE] [--hotpot FILE]

For each kind and length samples are made, as JSON, in one process a core for so many seconds (at least one sample
each), and the first texts of each are counted with the tokenizer. The kinds qa_1 and qa_2 need files with questions.
"""

import argparse
import json
import multiprocessing
import os
import time
from typing import Any

from benchmarks.record import Row, arguments, result, write
from memagent.evaluation.suites import Suite
from memagent.reading.tokens import load_tokenizer
from pipelines.stages.make_samples import haystack

MODEL = "memagent/nano/sft"


def make(job: tuple[Suite, float, int]) -> tuple[int, float, list[str]]:
    """Make samples of a suite's one kind and length; return characters, seconds and the first texts."""
    suite, seconds, core = job
    (group,) = suite.groups()
    tokenizer = load_tokenizer(MODEL)
    samples = group.samples(tokenizer, haystack(()))
    for _ in range(core):
        next(samples, None)
    kept: list[str] = []
    chars, began = 0, time.monotonic()
    for sample in samples:
        text = sample.text()
        chars += len(json.dumps(text)) - 2  # as it is written to a file
        if len(kept) < 2:
            kept.append(text)
        if time.monotonic() - began > seconds:
            break
    return chars, time.monotonic() - began, kept


def measure(kind: str, length: int, seconds: float, data: tuple[str, ...]) -> dict[str, Any]:
    """Measure a kind at a length, on all cores at once."""
    suite = Suite("ruler", (kind,), (length,), n=100_000, data=data)
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(haystack, [()] * cores, chunksize=1)  # read once, before the clock runs
        results = pool.map(make, [(suite, seconds, core) for core in range(cores)], chunksize=1)
    tokenizer = load_tokenizer(MODEL)
    texts = [text for _, _, texts in results for text in texts]
    counts = [len(tokenizer.encode(text)) for text in texts]
    rate = sum(chars / spent for chars, spent, _ in results)
    per_char = sum(counts) / sum(map(len, texts))
    shares = [count / length for count in counts]
    return {
        "kind": kind,
        "length": length,
        "tokens_per_second": round(rate * per_char),
        "share_of_length": [round(min(shares), 4), round(max(shares), 4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="8000,128000,1000000")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--kinds", default="", help="only these, with commas")
    parser.add_argument("--squad")
    parser.add_argument("--hotpot")
    arguments(parser)
    given = parser.parse_args()
    kinds: list[tuple[str, tuple[str, ...]]] = [(group.kind, ()) for group in Suite("ruler", lengths=(1,)).groups()]
    kinds += [(kind, (path,)) for kind, path in (("qa_1", given.squad), ("qa_2", given.hotpot)) if path]
    wanted = [name for name in given.kinds.split(",") if name]
    rows = []
    for kind, data in [one for one in kinds if not wanted or one[0] in wanted]:
        for length in map(int, given.lengths.split(",")):
            found = measure(kind, length, given.seconds, data)
            print(json.dumps(found), flush=True)
            shortest = f"shortest text {found['share_of_length'][0]:.1%}"
            rate = round(found["tokens_per_second"] / 1e6, 1)
            rows.append(Row(kind, rate, "M", column=f"{length:,} tokens", note=shortest))
    write(result("generation", "Making samples: tokens a second", rows, given))


if __name__ == "__main__":
    main()
