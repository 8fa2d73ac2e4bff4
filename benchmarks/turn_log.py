"""A turn log of gigabytes: what finding half-read readings in it and compacting it take.

    python -m benchmarks.turn_log [--gigabytes 3] [--set key=value ...]

The turns are those of one run that was broken off: readings of a hundred turns, each with a memory text of 4.6 KB. Each
step runs in a process of its own, whose peak memory is measured; Ray's tasks compact.
"""

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.plan import watched
from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import Step, in_process, peak_mb
from infra.cluster.session import lazy_ray
from infra.store.location import Corpus, Store
from infra.store.turns import TurnWriter, resume_points
from memagent.config import Config, load_config
from memagent.nano import bundled
from memagent.records import Turn
from pipelines.operate.optimize import compact_turns

RUN = "broken-off"
TURNS = 100
_TEXT = 4_600
_PART = 4 * 2**20
_ASKED = 1_000
_WORDS = "party notice term region agreement shall renew payment seller buyer clause governed county district".split()


def fill(config: Config, readings: int) -> Step:
    """Write the log."""
    began = time.monotonic()
    writer = TurnWriter(Corpus(Store(config.store), "log"), RUN, "policy")
    rng = random.Random(0)
    for number in range(readings):
        for step in range(TURNS):
            text = " ".join(rng.choices(_WORDS, k=_TEXT // 7))
            ids = list(range(number % 50, number % 50 + 40))
            writer.add(
                Turn(
                    reading_id=f"reading-{number:07}",
                    span=0,
                    step=step,
                    kind="update",
                    content_hash=f"{number:032x}",
                    segment_index=step,
                    memory_ids=ids,
                    memory=text,
                    response_ids=ids,
                    response="",
                    changed=step % 10 == 0,
                    prompt_tokens=300,
                    cached_tokens=0,
                    seconds=0.1,
                    finish_reason="stop",
                )
            )
        if writer.buffered_bytes >= _PART:
            writer.flush()
    writer.flush()
    return _step(began, readings * TURNS)


def resume(config: Config, readings: int) -> Step:
    """Find where some of the readings continue."""
    began = time.monotonic()
    asked = [f"reading-{number:07}" for number in range(0, readings, max(1, readings // _ASKED))]
    points = resume_points(Corpus(Store(config.store), "log"), asked, [RUN])
    if points.keys() != set(asked) or any(turns[-1].step != TURNS - 1 for turns in points.values()):
        raise RuntimeError("turns are missing")
    return _step(began, sum(map(len, points.values())))


def compact(config: Config) -> Step:
    """Compact the log; `stages` has the largest memory of a task."""
    began = time.monotonic()
    with lazy_ray(config.ray), watched() as most:
        compact_turns(Corpus(Store(config.store), "log"), RUN)
    made = _step(began, 0)
    made["stages"] = {"task_mb": most[0]}
    return made


def _step(began: float, turns: int) -> Step:
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": peak_mb(),
        "conversations": turns,
        "engine_seconds": 0.0,
        "stages": {},
    }


def measure(gigabytes: float, sets: list[str]) -> list[Row]:
    """Measure a log of so many gigabytes of memory text."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-turns-"))
    model = ["engine.kind=scripted", f"engine.model={bundled()}"]
    config = load_config(sets=[*model, *sets], store=str(folder / "store"))
    readings = round(gigabytes * 1e9 / _TEXT / TURNS)
    column = f"{gigabytes:g} GB of memory text, {readings * TURNS:,} turns"
    try:
        in_process(fill, config, readings)
        rows = []
        for name in ("resume points of a thousand readings", "compaction", "resume points after it"):
            made = in_process(compact, config) if name == "compaction" else in_process(resume, config, readings)
            print(f"{name}: {made}", flush=True)
            rows.append(Row(name, made["seconds"], "s", column=column, n=1))
            rows.append(Row(f"driver's peak memory, {name}", made["peak_mb"], "MB", column=column, n=1))
            if made["stages"]:
                rows.append(Row("peak memory of a task", made["stages"]["task_mb"], "MB", column=column, n=1))
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    write(result("turn-log", "A turn log of gigabytes", measure(given.gigabytes, given.set), given))


if __name__ == "__main__":
    main()
