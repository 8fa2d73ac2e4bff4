"""What the driver can hand out and commit, with many engines that answer at once.

    python -m benchmarks.driver [--documents 100000] [--engines 4,16] [--store URL]

All processes share this machine's cores, so the pace itself says little: what counts is the processor time that the
driver and Ray's head processes spend on a conversation. Its inverse is what a core of the head node can keep busy.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import QUESTION, Step, in_process, make_corpus, peak_mb, take
from memagent.config import Config, load_config
from memagent.nano import bundled
from memagent.questions import ask as make_question
from memagent.records import ProgressCounts
from pipelines.ask import ask

_HEAD = ("gcs_server", "raylet")
_GPU_PACE = 6.0
"""Conversations a second of a 9B model on an H100: 32,700 tokens a second (published), 5,500 of them a conversation."""


def read(config: Config) -> Step:
    """Ask one question; `stages` has the processor seconds of the pass, of the driver and of Ray's head processes."""
    spent: dict[str, tuple[float, float, float]] = {}

    def note(progress: ProgressCounts) -> None:
        if "stage" in progress:
            spent.setdefault(progress["stage"], (time.monotonic(), _processor(), _head()))

    began = time.monotonic()
    summary = ask("scale", [make_question(QUESTION)], config, show=note)
    if summary["readings"]["failed"]:
        raise RuntimeError(f"readings failed: {summary['failures_by_reason']}")
    wall, driver, head = (after - before for before, after in zip(spent["read"], spent["done"], strict=True))
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": peak_mb(),
        "conversations": summary["conversations"],
        "engine_seconds": summary["engine_seconds"],
        "stages": {"wall": wall, "driver": driver, "head": head},
    }


def _processor() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def _head() -> float:
    """Return the processor seconds of Ray's processes that a head node has besides the driver."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() in _HEAD:
                times = process.cpu_times()
                seconds += times.user + times.system
        except psutil.Error:
            continue
    return seconds


def rows_of(engines: int, step: Step, store: str) -> list[Row]:
    """Return what was measured, and what follows from it by calculation."""
    print(f"{engines} engines, {store}: {step}", flush=True)
    column, stages, conversations = f"{engines} engines, {store}", step["stages"], step["conversations"]
    driver, head = (stages[name] / conversations for name in ("driver", "head"))
    capacity = 1 / driver
    return [
        Row("conversations a second, all on this machine", round(conversations / stages["wall"]), column=column, n=1),
        Row("driver's processor time a conversation", round(driver * 1e6), "µs", column=column, n=1),
        Row("the same of Ray's head processes", round(head * 1e6), "µs", column=column, n=1),
        Row("driver's peak memory", step["peak_mb"], "MB", column=column, n=1),
        Row(
            "conversations a second that one core of the driver can hand out and commit",
            round(capacity),
            column=column,
            note="calculated",
        ),
        Row(
            "GPUs that this keeps busy",
            round(capacity / _GPU_PACE),
            column=column,
            note=f"calculated: {_GPU_PACE:.0f} conversations a second each, a 9B model on an H100",
        ),
        *(
            Row(
                f"share of a driver's core with {gpus:,} GPUs",
                round(gpus * _GPU_PACE * driver, 2),
                column=column,
                note="calculated, with the same pace",
            )
            for gpus in (64, 1_000)
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--engines", default="4,16")
    parser.add_argument("--store", default="", help="URL to put the store under; else a temporary folder")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    rows: list[Row] = []
    for engines in map(int, given.engines.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="memagent-driver-"))
        store = f"{given.store}/{engines}" if given.store else str(folder / "store")
        model = ["engine.kind=scripted", f"engine.model={bundled()}", "pool.cpus=0.1", f"pool.max_size={engines}"]
        config = load_config(sets=[*model, *given.set], store=store)
        try:
            make_corpus(folder / "corpus", given.documents)
            in_process(take, config, str(folder / "corpus"))
            kind = "S3" if store.startswith("s3://") else "folder"
            rows += rows_of(engines, in_process(read, config), kind)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    write(result("driver", "The driver with many engines", rows, given))


if __name__ == "__main__":
    main()
