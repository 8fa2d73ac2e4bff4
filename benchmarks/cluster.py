"""A Ray cluster of one head and four nodes on one machine: scaling, a node that is killed, and one that joins.

    python -m benchmarks.cluster [--documents 2000]

Every node is a `ray start` process with a working folder of its own; the store is on an S3 server (SeaweedFS). The
scripted engine waits a second in each conversation and takes 32 at once, as a slow engine does, so that four of them do
not compete for this machine's processors. The head offers no CPUs; each node has room for one engine.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from ray.util import get_node_ip_address

from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import QUESTION, Step, document, in_process, peak_mb
from infra.cluster.session import lazy_ray
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from memagent.config import Config, load_config
from memagent.nano import bundled
from memagent.questions import ask as make_question
from pipelines.ask import ask
from pipelines.stages.ingest import ingest
from tests.support.s3_server import s3_server

_ENGINE = ["engine.kind=scripted", "engine.scripted_delay=1.0", "pool.inflight=32", "pool.cpus=1"]
_MEMORY = 200 * 2**20
"""Bytes of a node's object store."""
_LOOK_SECONDS = 0.5
_START_SECONDS = 6.0


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Nodes that can be started and killed one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_port()
        self.address = f"{get_node_ip_address()}:{port}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        self.start(*head, f"--temp-dir={folder / 'ray'}")

    def start(self, *options: str) -> None:
        """Start a node; without options one that has room for an engine."""
        folder = self._folder / f"node{len(self.nodes)}"
        folder.mkdir()
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        command += [f"--object-store-memory={_MEMORY}", f"--dashboard-agent-listen-port={free_port()}"]
        command += options or (f"--address={self.address}", "--num-cpus=1")
        with (folder / "log").open("wb") as log:
            self.nodes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True))

    def kill(self, number: int) -> None:
        """Kill a node with all of its processes by SIGKILL."""
        if self.nodes[number].poll() is not None:
            return
        root = psutil.Process(self.nodes[number].pid)
        for process in [*root.children(recursive=True), root]:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        self.nodes[number].wait()


@contextmanager
def cluster(engines: int) -> Iterator[Cluster]:
    """Run a head and so many nodes."""
    with tempfile.TemporaryDirectory(prefix="memagent-nodes-", ignore_cleanup_errors=True) as name:
        running = Cluster(Path(name))
        try:
            time.sleep(_START_SECONDS)
            for _ in range(engines):
                running.start()
                time.sleep(_START_SECONDS)
            yield running
        finally:
            for number in reversed(range(len(running.nodes))):
                running.kill(number)


def configured(store: str, address: str | None, engines: int) -> Config:
    """Return the configuration of a run on the cluster."""
    sets = [*_ENGINE, f"engine.model={bundled()}", f"pool.min_size={engines}", f"pool.max_size={engines}"]
    return load_config(sets=sets, store=store, ray__address=address)


def fill(config: Config, folder: str) -> Step:
    """Ingest the corpus."""
    with lazy_ray(config.ray):
        ingest(Corpus(Store(config.store), "cluster"), [folder], config, "ingest")
    return {"seconds": 0.0, "peak_mb": peak_mb(), "conversations": 0, "engine_seconds": 0.0, "stages": {}}


def read(config: Config) -> Step:
    """Ask one question of the corpus."""
    began = time.monotonic()
    summary = ask("cluster", [make_question(QUESTION)], config)
    if summary["readings"]["failed"]:
        raise RuntimeError(f"readings failed: {summary['failures_by_reason']}")
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": peak_mb(),
        "conversations": summary["conversations"],
        "engine_seconds": summary["engine_seconds"],
        "stages": {"deaths": summary["engine_deaths"]},
    }


def make_corpus(folder: Path, documents: int) -> None:
    """Write documents of one segment as a Parquet file."""
    folder.mkdir()
    texts = pa.array([document(number * 20, 0) for number in range(documents)], pa.large_string())
    pq.write_table(pa.table({"id": [f"doc-{n:06}" for n in range(documents)], "text": texts}), folder / "all.parquet")


def answers(store: str) -> dict[str, str]:
    """Return the answers by text; raise if a document has two."""
    table = Table(Store(store), "answers").read("cluster", ["reading_id", "content_hash", "answer"])
    if len(table["reading_id"].unique()) != table.num_rows:
        raise RuntimeError("a reading has two answers")
    return dict(zip(table["content_hash"].to_pylist(), table["answer"].to_pylist(), strict=True))


def disturbed(config: Config, change: Callable[[], None]) -> Step:
    """Read the corpus, and change the cluster once a third of the answers is there."""
    total = Table(Store(config.store), "documents").count("cluster")

    def watch() -> None:
        while Table(Store(config.store), "answers").count("cluster") < total / 3:
            time.sleep(_LOOK_SECONDS)
        change()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    step = in_process(read, config)
    watcher.join()
    return step


def measure(bucket: str, documents: int) -> list[Row]:
    """Measure one, two and four engines, a node that is killed and one that joins."""
    rows: list[Row] = []
    rates: dict[int, float] = {}
    expected: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="memagent-corpus-") as name:
        corpus = Path(name) / "corpus"
        make_corpus(corpus, documents)
        for case, engines, nodes in (("one", 1, 4), ("two", 2, 4), ("four", 4, 4), ("killed", 4, 4), ("joins", 4, 3)):
            store = f"{bucket}/{case}"
            in_process(fill, configured(store, None, 1), str(corpus))
            with cluster(nodes) as running:
                config = configured(store, running.address, engines)
                if case == "killed":
                    step = disturbed(config, lambda: running.kill(2))
                elif case == "joins":
                    step = disturbed(config, running.start)
                else:
                    step = in_process(read, config)
            print(f"{case}: {step}", flush=True)
            expected = expected or answers(store)
            if answers(store) != expected:
                raise RuntimeError(f"{case}: the answers differ")
            rate = step["conversations"] / step["engine_seconds"]
            if case in ("one", "two", "four"):
                rates[engines] = rate
                rows.append(Row("conversations a second", round(rate, 1), column=f"{engines} engines", n=1))
                rows.append(Row("times one engine", round(rate / rates[1], 2), column=f"{engines} engines"))
            elif case == "killed":
                again = step["conversations"] - 2 * documents
                note = f"answers equal; {again} of {2 * documents} conversations again"
                rows.append(Row("a node killed: run", step["seconds"], "s", column="4 engines", n=1, note=note))
            else:
                note = "three nodes at first, the fourth after a third of the answers"
                rows.append(Row("a node joins: run", step["seconds"], "s", column="4 engines", n=1, note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=2_000)
    arguments(parser)
    given = parser.parse_args()
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    with tempfile.TemporaryDirectory(prefix="memagent-s3-") as name, s3_server(Path(name)) as bucket:
        rows = measure(bucket, given.documents)
    write(result("cluster", "A cluster of four nodes", rows, given))


if __name__ == "__main__":
    main()
