"""Half an hour of reading with a kill every two minutes, beside bad sources: what is lost, and what grows.

    python -m benchmarks.soak [--documents 10000] [--minutes 30] [--every 120] [--set key=value ...]

A folder of texts, 2% of them broken, is asked a question by `memagent ask FOLDER`. A worker, its engine's process or
the driver is killed by SIGKILL in turn, and a command that ended is given again. The scripted engine waits in each
conversation, so that the reading takes the time; the same folder is then asked without waiting and without kills, in
another store, and the answers are compared. Memory, open files and threads of each driver, worker and engine are looked
at every five seconds.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.kills import Tally
from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import QUESTION
from infra.store.corpora import corpora
from infra.store.delta import Table
from infra.store.documents import quarantined
from infra.store.location import Corpus, Store
from memagent.nano import bundled

_TITLES = {"worker": "MapBatches(_EngineWorker)", "engine": "infra.engines.scripted"}
_ORDER = ("worker", "engine", "worker", "engine", "driver")
_CONVERSATIONS = 64
"""At once; each waits a second."""
_LOOK_SECONDS = 5.0
_WARM_SECONDS = 60.0
"""Of a process's life that do not count for what grows."""
_BAD = {
    ".pdf": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog",
    ".txt": bytes(range(256)) * 40,
    ".gz": b"\x1f\x8b\x08\0\0\0\0\0\0\x03K",
    ".docx": b"PK\x03\x04 not really",
    ".jsonl": b"{" * 500,
}
_WORDS = "the of a contract party shall notify region color weather table data file index under agreement term".split()


@dataclass
class Life:
    """What was seen of one process: seconds of its life, MB, open files, threads."""

    title: str
    seen: list[tuple[float, float, int, int]] = field(default_factory=list)

    def see(self, process: psutil.Process) -> None:
        """Note what it holds now. Raises psutil.Error: it has ended."""
        age, memory = time.time() - process.create_time(), process.memory_info().rss / 2**20
        self.seen.append((age, memory, process.num_fds(), process.num_threads()))

    def growth(self) -> tuple[float, int, int] | None:
        """Return MB, files and threads in the last third of its life more than in the first, without its start."""
        warm = [row[1:] for row in self.seen if row[0] >= _WARM_SECONDS]
        third = len(warm) // 3
        if third < 2:
            return None
        early, late = (
            [sum(row[i] for row in part) / len(part) for i in range(3)] for part in (warm[:third], warm[-third:])
        )
        return late[0] - early[0], round(late[1] - early[1]), round(late[2] - early[2])


def make_folder(folder: Path, documents: int, conversations: int) -> int:
    """Write the texts; return how many of them are broken."""
    folder.mkdir(parents=True)
    bad = list(_BAD.items())
    sentences = max(1, 11 * conversations // documents)
    for number in range(documents):
        if number % 50 == 7:
            suffix, data = bad[number // 50 % len(bad)]
            (folder / f"doc-{number:05}{suffix}").write_bytes(data + str(number).encode())
            continue
        rng = random.Random(number)
        lines = [" ".join(rng.choices(_WORDS, k=12)).capitalize() + "." for _ in range(rng.randint(1, 2 * sentences))]
        lines.insert(rng.randrange(len(lines)), f"The secret code of the vault is {number}.")
        (folder / f"doc-{number:05}.txt").write_text(" ".join(lines))
    return len(range(7, documents, 50))


def command(folder: Path, store: Path, sets: list[str]) -> list[str]:
    """Return the command that is given again and again."""
    given = ["engine.kind=scripted", f"engine.model={bundled()}", "engine.scripted_process=true", *sets]
    argv = [sys.executable, "-m", "memagent", "ask", str(folder), "-q", QUESTION, "--store", str(store)]
    return [*argv, "--no-answers", *(part for item in given for part in ("--set", item))]


def soak(argv: list[str], tally: Tally, minutes: float, every: float) -> tuple[Counter[str], list[Life], int]:
    """Give the command until it ends by itself; return the kills, the lives of its processes, and the starts."""
    kills, lives, starts = Counter[str](), dict[int, Life](), 0
    order = (_ORDER[number % len(_ORDER)] for number in range(sys.maxsize))
    begun = time.monotonic()
    following = begun + every
    while True:
        starts += 1
        environment = {**os.environ, "MEMAGENT_SCRIPTED_TALLY": str(tally.path)}
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
        root = psutil.Process(process.pid)
        killed_it = False
        while process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            look(root, lives)
            if following <= time.monotonic() < begun + minutes * 60:
                target = next(order)
                victim = root if target == "driver" else next(named(root, _TITLES[target]), None)
                if victim is not None:
                    following = time.monotonic() + every
                    victim.send_signal(signal.SIGKILL)
                    kills[target] += 1
                    killed_it = target == "driver"
                    print(f"{target} killed after {tally.conversations:,} conversations", flush=True)
        if process.returncode in (0, 1):  # 1: it read all, and says that there are broken sources
            return kills, list(lives.values()), starts
        if not killed_it:
            raise RuntimeError(f"the run ended with status {process.returncode}")


def named(root: psutil.Process, title: str) -> Iterator[psutil.Process]:
    """Yield the processes below one whose command line has a title."""
    for process in root.children(recursive=True):
        with suppress(psutil.Error):
            if title in " ".join(process.cmdline()):
                yield process


def look(root: psutil.Process, lives: dict[int, Life]) -> None:
    """Note what the driver, the workers and their engines hold now."""
    watched = {"driver": [root], **{name: list(named(root, title)) for name, title in _TITLES.items()}}
    for title, found in watched.items():
        for process in found:
            with suppress(psutil.Error):
                lives.setdefault(process.pid, Life(title)).see(process)


def answers(store: Path) -> dict[str, tuple[str, bool]]:
    """Return what was answered by reading; raise if a reading has two answers."""
    kept = Store(str(store))
    (name,) = corpora(kept)
    table = Table(kept, "answers").read(name, ["content_hash", "answer", "found"])
    if table.num_rows != pc.count_distinct(table["content_hash"]).as_py():
        raise RuntimeError("a reading has two answers")
    return {row["content_hash"]: (row["answer"], row["found"]) for row in table.to_pylist()}


def measure(given: argparse.Namespace) -> list[Row]:
    """Read a folder, disturbed and undisturbed."""
    base = Path(tempfile.mkdtemp(prefix="memagent-soak-"))
    try:
        bad = make_folder(base / "texts", given.documents, int(given.minutes * 60 * _CONVERSATIONS))
        waits = ["engine.scripted_delay=1.0", f"pool.inflight={_CONVERSATIONS}", "pool.max_size=1", *given.set]
        tally = Tally(base / "tally")
        began = time.monotonic()
        kills, lives, starts = soak(
            command(base / "texts", base / "store", waits), tally, minutes=given.minutes, every=given.every
        )
        seconds = time.monotonic() - began
        subprocess.run(command(base / "texts", base / "calm", given.set), stdout=subprocess.DEVNULL)
        found, expected = answers(base / "store"), answers(base / "calm")
        kept = Store(str(base / "store"))
        (name,) = corpora(kept)
        turns = ds.dataset(kept.list("turns", name), filesystem=kept.arrow).to_table(
            columns=["reading_id", "span", "step"]
        )
        distinct = turns.group_by(["reading_id", "span", "step"]).aggregate([]).num_rows
        again = tally.conversations - distinct
        items = quarantined(Corpus(kept, name))["item"].to_pylist()
        refused = len({item.split("#")[0] for item in items})
        return [
            Row("minutes", round(seconds / 60, 1), note=f"started {starts} times"),
            Row("kills", kills.total(), note=", ".join(f"{n} {target}" for target, n in sorted(kills.items()))),
            Row("documents read", len(found), note=f"of {given.documents - bad:,} good ones"),
            Row("sources in quarantine", refused, note=f"of {bad} bad ones"),
            Row("answers that differ from the undisturbed run", sum(found.get(k) != v for k, v in expected.items())),
            Row("conversations", distinct),
            Row("done again", round(100 * again / distinct, 2), "%", note=f"{again:,} conversations"),
            *grown(lives),
        ]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def grown(lives: Collection[Life], titles: Iterable[str] = ("driver", *_TITLES)) -> Iterator[Row]:
    """Yield what each kind of process holds more in the last third of its life than in the first: the worst of it."""
    for title in titles:
        mine = [life for life in lives if life.title == title and life.seen]
        growths = [growth for life in mine if (growth := life.growth())]
        if growths:
            longest = max(life.seen[-1][0] for life in mine) / 60
            note = f"{len(growths)} processes, the longest of {longest:.0f} minutes"
            yield Row(f"growth of memory, {title}", round(max(g[0] for g in growths), 1), "MB", note=note)
            yield Row(f"growth of open files, {title}", max(g[1] for g in growths))
            yield Row(f"growth of threads, {title}", max(g[2] for g in growths))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=120, help="seconds between two kills")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    write(result("soak", "Half an hour of reading, killed every two minutes", measure(given), given))


if __name__ == "__main__":
    main()
