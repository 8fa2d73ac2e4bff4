"""Fuzzing by hypothesis.

    python -m tests.fuzz [--inputs 100000] [--targets "source .pdf,configuration"]

An input that fails is made small, printed, and kept in `.hypothesis`, so that the next call begins with it.
"""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, Target


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--targets", default=",".join(TARGETS))
    asked = parser.parse_args()
    failed = []
    for name in asked.targets.split(","):
        begun = time.monotonic()
        try:
            fuzz(TARGETS[name], asked.inputs)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        seconds = time.monotonic() - begun
        print(f"{name}: {asked.inputs:,} inputs, {seconds:.0f} s{' FAILED' if name in failed else ''}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
