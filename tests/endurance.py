"""Kill a run at a random moment, run the same command again, and compare with an undisturbed run.

    python -m tests.endurance --engine scripted --times 10
    python -m tests.endurance --engine vllm --times 2

Targets: the driver and the engine of a run of one process, the worker and the driver of a run in Ray.

Prints one JSON line a kill and a summary; ends with status 1 if a check failed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc

from infra.store.delta import Table
from infra.store.location import Store

WORKER_TITLE = "MapBatches(_EngineWorker)"
IN_RAY = ("pool.max_size=2", "pool.cpus=0.4", "ray.cpus=2")
"""Settings with which a small run is a job of Ray Data; without them its command runs it."""
ENGINE_TITLES = {"scripted": "infra.engines.scripted", "vllm": "VLLM::EngineCore"}
TALLY = "MEMAGENT_SCRIPTED_TALLY"
_ATTEMPTS = 5
"""A kill that finds the reading ended already is tried again at another moment, so often."""
QUESTIONS = ("What is the pass number for amber-otter?", "What is the pass number for silver-heron?")


def make_archive(folder: Path, documents: int, paragraphs: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    words = "the of and to in report shall party term notice section payment service schedule agreement".split()
    folder.mkdir(parents=True)
    for i in range(documents):
        lines = []
        for _ in range(rng.randint(1, paragraphs)):
            lines.append(" ".join(rng.choice(words) for _ in range(60)) + ".")
        for key in ("amber-otter", "silver-heron"):
            if rng.random() < 0.7:
                at = rng.randrange(len(lines) + 1)
                lines.insert(at, f"The pass number for {key} is {rng.randrange(10**6, 10**7)}.")
        (folder / f"doc{i:03}.txt").write_text("\n\n".join(lines))


def command(store: str, engine: str, sets: list[str]) -> list[str]:
    argv = [
        sys.executable,
        "-m",
        "memagent",
        "ask",
        "archive",
        "--store",
        store,
        "--engine",
        engine,
        "--json",
    ]
    for question in QUESTIONS:
        argv += ["-q", question]
    for item in sets:
        argv += ["--set", item]
    return argv


def run(argv: list[str], tally: str = "") -> dict[str, Any]:
    done = subprocess.run(
        argv,
        env={**os.environ, TALLY: tally} if tally else None,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stderr[-2000:]}")
    said = json.loads(done.stdout)
    summary: dict[str, Any] = said.get("summary", said)
    return summary


def find(root: psutil.Process, title: str) -> psutil.Process | None:
    """Return a process below a command, or its warm engine, which is below nothing."""
    below = root.children(recursive=True)
    warm = sorted(psutil.process_iter(), key=lambda process: -process.create_time())
    for process in [*below, *(warm if title == ENGINE_TITLES["vllm"] else [])]:
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title in line:
            return process
    return None


def alive(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())[:80].strip()
    except psutil.Error:
        return ""


def outliving(processes: list[psutil.Process], seconds: float = 300) -> list[str]:
    """Wait until processes have ended; return those that have not, but for Ray's agents, which leave within 65 s."""
    until = time.monotonic() + seconds
    while left := [title for process in processes if (title := alive(process)) and "Agent" not in title]:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return left


def reading_began(store: Store) -> bool:
    return bool(store.list("turns", "archive"))


def kill_once(argv: list[str], store: Store, target: str, engine: str, delay: float) -> bool:
    """Start the command, kill the target `delay` seconds after reading began; tell whether it was there."""
    environment = {**os.environ, TALLY: f"{store.url}.tally"}
    said = Path(f"{store.url}.stderr")
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
    root = psutil.Process(process.pid)
    while not reading_began(store):
        if process.poll() is not None:
            raise AssertionError(f"it ended before it read: status {process.returncode}: {said.read_text()[-3000:]}")
        time.sleep(0.05)
    time.sleep(delay)
    if target in ("driver", "ray-driver"):
        victim: psutil.Process | None = root
    else:
        victim = find(root, WORKER_TITLE if target == "worker" else ENGINE_TITLES[engine])
    if victim is None or process.poll() is not None:
        process.wait()
        return False
    below = victim.children(recursive=True)
    victim.send_signal(signal.SIGKILL)
    if target in ("driver", "ray-driver"):
        process.wait()
    left = outliving(below)
    assert not left, f"processes outlive the {target}: {left}"
    process.wait()
    return True


def conversations(store: Store) -> tuple[int, int]:
    """Return (rows of the turn log, distinct keys)."""
    import pyarrow.dataset as ds

    paths = store.list("turns", "archive")
    table = ds.dataset(paths, filesystem=store.arrow).to_table(columns=["reading_id", "span", "step"])
    return table.num_rows, table.group_by(["reading_id", "span", "step"]).aggregate([]).num_rows


def answers(store: Store) -> dict[str, tuple[str, bool]]:
    table = Table(store, "answers").read("archive", ["reading_id", "answer", "found"])
    assert table.num_rows == pc.count_distinct(table["reading_id"]).as_py(), "a reading has two rows"
    return {row["reading_id"]: (row["answer"], row["found"]) for row in table.to_pylist()}


def ingest(store: str, folder: Path) -> None:
    run([sys.executable, "-m", "memagent", "ingest", "archive", str(folder), "--store", store, "--json"])


def endure(
    engine: str, times: int, targets: list[str], documents: int, paragraphs: int, sets: list[str], seed: int
) -> dict[str, Any]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_archive(base / "docs", documents, paragraphs)
        ingest(f"{base}/ready", base / "docs")
        run([*command(f"{base}/ready", engine, sets), "--dry-run"])  # segments are cut once for all
        shutil.copytree(base / "ready", base / "calm")
        calm_summary = run(command(f"{base}/calm", engine, sets))
        calm = answers(Store(f"{base}/calm"))
        other = calm
        if engine == "vllm":
            shutil.copytree(base / "ready", base / "calm2")
            run(command(f"{base}/calm2", engine, sets))
            other = answers(Store(f"{base}/calm2"))
        span = max(0.5, calm_summary["engine_seconds"] * 0.8)
        kills = []
        for target in targets:
            for i in range(times):
                for attempt in range(_ATTEMPTS):
                    where = f"{base}/{target}{i}-{attempt}"
                    shutil.copytree(base / "ready", where)
                    more = IN_RAY if target in ("worker", "ray-driver") else ()
                    argv = command(where, engine, [*sets, *more])
                    kill = kill_and_go_on(where, argv, target, engine, rng.uniform(0, span))
                    found = answers(Store(where))
                    kill["same_readings"] = set(found) == set(calm)
                    kill["differing"] = sum(found[k] != calm[k] for k in calm if k in found)
                    kills.append(kill)
                    print(json.dumps(kill), flush=True)
                    shutil.rmtree(where)
                    if kill["hit"]:
                        break
        undisturbed = sum(calm[k] != other[k] for k in calm)
        return {"kills": kills, "calm": calm_summary, "undisturbed_differing": undisturbed}


def kill_and_go_on(where: str, argv: list[str], target: str, engine: str, delay: float) -> dict[str, Any]:
    """Kill a run, give the same command again, and return what it came to."""
    store = Store(where)
    hit = kill_once(argv, store, target, engine, delay)
    summary = run(argv, f"{where}.tally")
    rows, keys = conversations(store)
    assert rows == keys, "a conversation is logged twice"
    tally = Path(f"{where}.tally")
    held = tally.stat().st_size if tally.exists() else None
    return {
        "engine": engine,
        "target": target,
        "delay": round(delay, 2),
        "hit": hit,
        "conversations": keys,
        "held": held,
        "again": round(held / keys - 1, 4) if held else None,
        "second_run": summary["conversations"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="scripted", choices=list(ENGINE_TITLES))
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--targets", default="driver,engine,worker,ray-driver")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--paragraphs", type=int, default=60)
    parser.add_argument("--again", type=float, default=0.05, help="share of conversations that may be done again")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    os.environ.pop("MEMAGENT_STORE", None)
    sets = list(given.set)
    if given.engine == "vllm":
        sets.append("engine.keep_alive=0")  # a warm engine outlives its command
    if given.engine == "scripted":
        # A run of about twenty seconds; what a kill costs is bounded by the seconds between two parts.
        sets += ["engine.scripted_process=true", "engine.scripted_delay=0.05", "pool.inflight=8", "flush_seconds=0.5"]
    targets = given.targets.split(",")
    result = endure(given.engine, given.times, targets, given.documents, given.paragraphs, sets, given.seed)
    kills = result["kills"]
    bad = [kill for kill in kills if not kill["same_readings"] or (given.engine == "scripted" and kill["differing"])]
    again = [kill["again"] for kill in kills if kill["hit"] and kill["again"] is not None]
    said = {
        "seed": given.seed,
        "kills": len(kills),
        "hit": sum(kill["hit"] for kill in kills),
        "hit_by_target": {target: sum(k["hit"] for k in kills if k["target"] == target) for target in targets},
        "failed": len(bad),
        "again_mean": round(sum(again) / len(again), 4) if again else None,
        "again_most": max(again, default=None),
        "undisturbed_seconds": result["calm"]["engine_seconds"],
        "conversations": result["calm"]["conversations"],
        "readings": result["calm"]["readings"]["total"],
        "undisturbed_differing": result["undisturbed_differing"],
        "disturbed_differing": [kill["differing"] for kill in kills],
    }
    print(json.dumps(said))
    missing = [target for target, hit in said["hit_by_target"].items() if hit < given.times]
    sys.exit(1 if bad or missing or max(again, default=0) > given.again else 0)


if __name__ == "__main__":
    main()
