"""Fuzzing by hypothesis.

    python -m tests.fuzz [--inputs 100000] [--targets "source .pdf,configuration"] [--record build/fuzz.jsonl]

An input that fails is made small, printed, and kept in `.hypothesis`, so that the next call begins with it. The record
has a line a target, written as soon as it is done; a later call adds to it.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, Target

_SHOWN = 1_000
"""Characters of a failure in the record."""


def fuzz(target: Target, inputs: int, *, derandomize: bool = False) -> int:
    """Give a target so many inputs, the same ones each time with `derandomize`; return how many it got.

    Raises what the smallest one raised.
    """
    given_to = 0
    with tempfile.TemporaryDirectory(prefix="memagent-fuzz-") as folder:

        @settings(max_examples=inputs, deadline=None, suppress_health_check=list(HealthCheck), derandomize=derandomize)
        @given(mutated(target.seeds))
        def run(data: bytes) -> None:
            nonlocal given_to
            given_to += 1
            target.check(data, Path(folder))

        run()
    return given_to


def note(record: Path, line: dict[str, object]) -> None:
    """Add a line to a record."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "date": datetime.now(UTC).date().isoformat()}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--record", type=Path, default=Path("build/fuzz.jsonl"))
    asked = parser.parse_args()
    failed = []
    for name in asked.targets.split(","):
        begun, error = time.monotonic(), ""
        try:
            fuzz(TARGETS[name], asked.inputs)
        except Exception as raised:
            traceback.print_exc()
            failed.append(name)
            error = f"{type(raised).__name__}: {raised}"[:_SHOWN]
        seconds = time.monotonic() - begun
        note(asked.record, {"target": name, "inputs": asked.inputs, "seconds": round(seconds), "failure": error})
        print(f"{name}: {asked.inputs:,} inputs, {seconds:.0f} s{' FAILED' if name in failed else ''}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
