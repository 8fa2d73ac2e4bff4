"""`memagent status` on very many documents: counted anew, and what is kept.

    python -m benchmarks.status [--documents 1000000] [--s3]

The documents and their answers are made up (Delta files as workers write them), and optimized. Each time is that of the
whole command in a process of its own, its imports among them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from benchmarks.record import Row, arguments, result, write
from benchmarks.review import CORPUS, make
from infra.store.location import Store
from memagent.config import load_config
from pipelines.operate.optimize import optimize
from tests.support.s3_server import s3_server

TIMES = 5


def command(url: str) -> float:
    """Return the seconds of the command."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "memagent", "status", CORPUS, "--store", url]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(url: str, documents: int) -> list[Row]:
    """Measure a store of so many documents, each with an answer."""
    store = Store(url)
    make(store, documents, 1)
    optimize(CORPUS, load_config(store=url), retention_days=0)
    kept = [command(url) for _ in range(TIMES)]
    anew = []
    for _ in range(TIMES):
        store.delete(store.path("counts", f"{CORPUS}.json"))
        anew.append(command(url))
    column = f"{documents:,} documents"
    return [
        Row(name, round(statistics.median(times), 2), "s", column=column, n=TIMES, note=f"highest {max(times):.2f}")
        for name, times in (("status after `optimize`", kept), ("status, all counted anew", anew))
    ]


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default="10000,1000000")
    parser.add_argument("--s3", action="store_true", help="start an S3 server, and put the stores there")
    arguments(parser)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="memagent-status-") as name,
        s3_server(Path(name)) if given.s3 else nullcontext(f"{name}/stores") as url,
    ):
        for documents in map(int, given.documents.split(",")):
            rows += measure(f"{url}/{documents}", documents)
            for row in rows[-2:]:
                print(f"{row.column}: {row.name} {row.value} s, {row.note}", flush=True)
    record, where = ("status-s3", ", on S3 (SeaweedFS on the same two cores)") if given.s3 else ("status", "")
    write(result(record, f"The status of a corpus{where}", rows, given))


if __name__ == "__main__":
    main()
