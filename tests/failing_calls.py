"""Fails every call that a small night makes to the store, to Ray and to the engine, each in turn and in two ways.

python -m tests.failing_calls [--to store|engine|ray] [--every K] [--output FILE]

For each N, a night on a fresh store is run whose call number N raises an error, before it does anything or after it has
done it ("done, but reported as failed"). Then the same command is given again, with nothing in its way. Its tables must
be those of an undisturbed night, and `check` must find nothing.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

NIGHTS = multiprocessing.get_context("forkserver")
"""Each night has a process of its own, as commands have: what a failed one holds goes with it."""
NIGHTS.set_forkserver_preload(
    ["pipelines.ask", "pipelines.operate.check", "infra.cluster.jobs", "infra.cluster.reading_worker"]
)
WAYS = ("before", "after")
TARGETS = ("store", "engine", "ray")
QUESTION = "What is the pass number for amber-otter?"
_NIGHT_SECONDS = 120.0


@dataclass
class Failing:
    """Counts calls, and fails one."""

    number: int = 0
    """The call that fails, from 1; 0: none."""
    way: str = "before"
    calls: int = 0
    name: str = ""
    """Of the call that was made to fail."""
    by: tuple[str, ...] = ("",)
    """Beginnings of the modules whose calls count."""

    def wrapped(self, call: Callable[..., Any], name: str, error: Callable[[str], Exception]) -> Callable[..., Any]:
        def told(way: str) -> None:
            if self.calls == self.number and self.way == way:
                self.name = name
                raise error(f"{name} was made to fail")

        @wraps(call)
        def failing(*arguments: Any, **named: Any) -> Any:
            if not sys._getframe(1).f_globals["__name__"].startswith(self.by):
                return call(*arguments, **named)
            self.calls += 1
            mine = self.calls == self.number
            told("before")
            result = call(*arguments, **named)
            if mine:
                self.calls, after = self.number, self.calls  # others were made within
                try:
                    told("after")
                finally:
                    self.calls = after
            return result

        @wraps(call)
        async def failing_later(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            mine = self.calls == self.number
            told("before")
            result = await call(*arguments, **named)
            if mine and self.way == "after":
                self.name = name
                raise error(f"{name} was made to fail")
            return result

        return failing_later if iscoroutinefunction(call) else failing

    def wrap(self, owner: Any, names: list[str], error: Callable[[str], Exception]) -> None:
        for name in names:
            setattr(owner, name, self.wrapped(getattr(owner, name), f"{owner.__name__}.{name}", error))


def install(target: str, failing: Failing) -> None:
    """Have the calls of a target counted, and one of them fail."""
    if target == "store":
        from infra.cluster import reading_worker
        from infra.store import documents as document_writer
        from infra.store.delta import Table
        from infra.store.location import Store
        from pipelines.stages import segment

        passive = {"path", "delta_uri", "fs", "arrow", "delta_options", "check"}
        for owner in (Store, Table):
            names = [name for name, call in vars(owner).items() if callable(call) and not name.startswith("_")]
            failing.wrap(owner, [name for name in names if name not in passive], OSError)
        for module in (reading_worker, segment, document_writer):
            failing.wrap(module, ["write_data_file"], OSError)
    elif target == "engine":
        from memagent.errors import EngineDied
        from memagent.reading.scripted import ScriptedEngine

        failing.wrap(ScriptedEngine, ["start", "generate"], EngineDied)
    else:
        import ray
        import ray.data
        from ray.exceptions import RaySystemError

        failing.by = ("infra", "pipelines")  # Ray calls itself, too, and sends such functions to its workers
        failing.wrap(ray, ["init", "put", "get", "wait", "remote", "get_actor", "nodes"], RaySystemError)
        failing.wrap(ray.data, ["from_arrow_refs"], RaySystemError)
        failing.wrap(ray.data.Dataset, ["map_batches", "iter_batches"], RaySystemError)


@dataclass
class ScheduledRun:
    """What a night is run with, and what came of it."""

    store: str
    model: str
    folder: str
    target: str = "store"
    failing: Failing = field(default_factory=Failing)


def run_night(night: ScheduledRun, out: Any) -> None:
    """Digest a folder; put the count of calls, the call that failed and the error into a queue."""
    from infra.store.corpora import remember
    from infra.store.location import Corpus, Store
    from memagent.config import load_config
    from memagent.records import Question
    from pipelines.ask import digest

    store = Store(night.store)
    sets = ["flush_seconds=0.2", "pool.engine_restarts=1"]
    sets += ["pool.max_size=2", "pool.cpus=0.4", "ray.cpus=2"] if night.target == "ray" else []
    config = load_config(store=night.store, engine__kind="scripted", engine__model=night.model, sets=sets)
    if night.failing.number >= 0:
        install(night.target, night.failing)
    error = ""
    try:
        remember(Corpus(store, "c"), sources=[night.folder])
        digest("c", [Question("otter", QUESTION)], config)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    out.put({"calls": night.failing.calls, "call": night.failing.name, "error": error})


def snapshot(url: str, model: str, out: Any) -> None:
    """Put what the tables hold into a queue, and what `check` finds; not what says how or when a run did its work."""
    from infra.store.delta import Table
    from infra.store.documents import current_documents, current_sources, document_texts
    from infra.store.location import Corpus, Store
    from memagent.config import load_config
    from pipelines.operate.check import check

    store = Store(url)
    corpus = Corpus(store, "c")
    tables = {
        "documents": (current_documents(corpus), ["doc_id", "content_hash", "title", "state", "chars"]),
        "sources": (current_sources(corpus), ["source", "doc_id", "state", "documents"]),
        "answers": (
            Table(corpus.store, "answers").read("c"),
            ["reading_id", "answer", "found", "evidence"],
        ),
        "segmented": (Table(corpus.store, "segmented").read("c"), ["content_hash", "segments", "tokens"]),
    }
    config = load_config(store=url, engine__kind="scripted", engine__model=model)
    rows = {
        name: sorted(json.dumps(row, sort_keys=True) for row in table.select(columns).to_pylist())
        for name, (table, columns) in tables.items()
    }
    hashes = tables["documents"][0]["content_hash"].to_pylist()
    rows["texts"] = sorted(f"{name} {text}" for name, text in document_texts(corpus, hashes))
    rows["damages"] = [json.dumps(damage) for damage in check("c", config)["damages"]]
    out.put(rows)


def in_process(work: Callable[..., None], *arguments: Any) -> Any:
    """Return what a function puts into a queue, in a process of its own."""
    out = NIGHTS.SimpleQueue()
    process = NIGHTS.Process(target=work, args=(*arguments, out))
    process.start()
    process.join(_NIGHT_SECONDS)
    if process.is_alive():
        process.kill()
        return {"calls": 0, "call": "", "error": f"it has not ended in {_NIGHT_SECONDS:.0f} s"}
    return out.get() if not out.empty() else {"calls": 0, "call": "", "error": f"status {process.exitcode}"}


@dataclass(frozen=True)
class Trial:
    """A night whose call failed, and the one after it."""

    target: str
    number: int
    way: str
    call: str
    error: str
    """Of the night that was disturbed; empty: it went on in spite of it."""
    again: str
    """Of the night after it; must be empty."""
    differs: list[str]
    """Tables that are not those of the undisturbed night; must be empty."""

    @property
    def good(self) -> bool:
        return not self.again and not self.differs


def trials(target: str, folder: Path, model: Path, numbers: Callable[[int], list[int]]) -> list[Trial]:
    """Fail calls of a target; `numbers` says which ones, of how many."""
    from tests.support.archives import write_archive

    write_archive(folder / "docs", count=4, words=60)
    of = (str(model), str(folder / "docs"), target)
    calm = in_process(run_night, ScheduledRun(str(folder / "calm"), *of, Failing()))
    assert not calm["error"], calm
    expected = in_process(snapshot, str(folder / "calm"), str(model))
    assert not expected["damages"], expected["damages"]
    done = []
    for number in numbers(calm["calls"]):
        for way in WAYS:
            store = str(folder / f"{number}-{way}")
            first = in_process(run_night, ScheduledRun(store, *of, Failing(number, way)))
            second = in_process(run_night, ScheduledRun(store, *of, Failing(-1)))
            found = in_process(snapshot, store, str(model))
            differs = [name for name in expected if found.get(name) != expected[name]]
            done.append(Trial(target, number, way, first["call"], first["error"], second["error"], differs))
    return done


def main() -> int:
    """Run the trials, and print those that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", choices=TARGETS, action="append")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    from tests.conftest import save_model

    rows: list[Trial] = []
    for target in given.to or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            model = save_model(Path(folder) / "model")
            mine = trials(target, Path(folder), model, lambda calls: list(range(1, calls + 1, given.every)))
        rows += mine
        bad = [trial for trial in mine if not trial.good]
        stopped = sum(bool(trial.error) for trial in mine)
        ended = f"{len(mine)} nights with a failed call, {stopped} ended by it"
        print(f"{target}: {ended}, {len(bad)} wrong after the next one")
        for trial in bad:
            print(f"  {trial}")
    if given.output:
        given.output.write_text(json.dumps([asdict(trial) for trial in rows], indent=1))
    return 1 if any(not trial.good for trial in rows) else 0


if __name__ == "__main__":
    from tests import failing_calls  # by its name, which Ray's workers can import

    sys.exit(failing_calls.main())
