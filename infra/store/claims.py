"""Claims: the work of running runs, so that another run with the same work waits instead of repeating it.

    claims/<corpus>.json             the runs that are using the corpus, and the questions that each has claimed
    claims/_store.json               the run that has the whole store for itself: it deletes files that others may use
    runs/<run_id>/heartbeat.json     written anew every few seconds while the run lives

A run whose process is gone, or whose heartbeat has stopped, has no claims.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

from infra.store.location import Corpus, Store
from memagent.errors import MemagentError
from memagent.records import Progress

_log = logging.getLogger("memagent.claims")
_BEAT_SECONDS = 10.0
_DEAD_SECONDS = 90.0
"""A run without a heartbeat for so long is dead, by the store's clock: machines' clocks may differ by more."""
_ORPHAN_SECONDS = 20.0
"""After the last heartbeat of a run that was killed: so long its workers may live."""
_NUMBERS = ("process", "started")
_LOOK_SECONDS = 2.0
_BRIEF_SECONDS, _BRIEF_LOOK = 3.0, 0.1
"""How long who wants the whole store waits for writers that only add some rows, as people's verdicts are."""
_WHOLE = "_store"
"""In the place of a corpus: no corpus can be called so."""
_ALONE = "has the whole store for itself"


class Heartbeat(TypedDict):
    """The process of a run."""

    host: str
    """Kernel and process namespace, where `process` has its meaning."""
    process: int
    started: int
    """Start time of the process in ticks of that kernel: its pid may be reused later."""


class RunningError(MemagentError):
    """Another run is using the same."""


@contextmanager
def claimed(
    corpus: Corpus,
    run_id: str,
    work: Collection[str],
    *,
    wait: bool,
    waiting: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold claims for the body, beside a heartbeat.

    Args:
        work: names of what it reads; equal names are equal work.
        wait: for a run that has claimed any of it, or that has the whole store for itself.
        waiting: is told that run's id, when waiting begins.
        check: is called while it waits; what it raises ends the waiting.

    Raises RunningError: another run has claimed some of it, or the whole store, and `wait` is off.
    """
    with _beating(corpus, run_id):
        shown_holder = ""
        for holder in _holders(corpus, run_id, frozenset(work), wait=wait):
            if holder != shown_holder:
                waiting(holder)
                shown_holder = holder
            check()
            time.sleep(_LOOK_SECONDS)
        yield


@contextmanager
def used(
    corpus: Corpus, run_id: str, work: Collection[str] = (), *, wait: bool, show: Progress | None
) -> Iterator[None]:
    """Hold, for the body, what keeps away runs that want the whole store (`alone`) or claim equal `work` (`claimed`).

    `show` is told of the run that is in the way, when waiting for it begins.

    Raises RunningError: a run is in the way, and `wait` is off.
    """

    def waiting(holder: str) -> None:
        _log.info("waiting for run %s", holder)
        if show is not None:
            show({"stage": "wait", "run": holder})

    with claimed(corpus, run_id, work, wait=wait, waiting=waiting):
        yield


@contextmanager
def alone(store: Store, run_id: str) -> Iterator[None]:
    """Have the whole store for the body: runs that begin in the meantime wait for its end.

    Raises RunningError: a run is using the store.
    """
    whole = Corpus(store, _WHOLE)
    with _beating(whole, run_id):
        # Both sides write down what they want before they look at the other's: one of them sees the other.
        until = time.monotonic() + _BRIEF_SECONDS
        while others := _register(whole, run_id, frozenset([_WHOLE])) or next(_claimants(store, is_alive), ""):
            if time.monotonic() > until:
                raise RunningError(f"run {others} is using {store.url}: wait for its end, or end it")
            time.sleep(_BRIEF_LOOK)
        while killed := next(_claimants(store, _may_write), ""):
            _log.info("waiting until no worker of run %s, which was killed, can write any more", killed)
            time.sleep(_LOOK_SECONDS)
        yield


@contextmanager
def _beating(corpus: Corpus, run_id: str) -> Iterator[None]:
    """Keep a heartbeat for the body, and give up the run's claims on a corpus after it."""
    store, stop = corpus.store, threading.Event()
    beat(store, run_id)
    thread = threading.Thread(target=_beat_until, args=(store, run_id, stop), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _release(corpus, run_id)


def _release(corpus: Corpus, run_id: str) -> None:
    """Give up a run's claims. Where the store is gone they end with the process; the run's own error is what counts."""
    store = corpus.store
    try:
        store.delete(store.path("runs", run_id, "heartbeat.json"))  # a run without one holds no claims
        _change(corpus, lambda claims: claims.pop(run_id, None))
    except (OSError, MemagentError) as error:
        _log.warning("the claims of run %s are not given up: %s: %s", run_id, type(error).__name__, error)


def beat(store: Store, run_id: str) -> None:
    """Write a run's heartbeat."""
    store.write_bytes(json.dumps(this_process()).encode(), "runs", run_id, "heartbeat.json")


def this_process() -> Heartbeat:
    """Return what tells this process from all others."""
    return {"host": _host(), "process": os.getpid(), "started": _started(os.getpid())}


def is_gone(process: Heartbeat) -> bool:
    """Whether a process is known to have ended: it was of this machine, and is no more."""
    return process["host"] == _host() and not 0 < process["started"] == _started(process["process"])


def is_alive(store: Store, run_id: str) -> bool:
    """Whether a run's process is alive, as far as this machine can tell."""
    last = _last(store, run_id)
    if last is None:
        return False
    if last["host"] == _host():
        return 0 < last["started"] == _started(last["process"])
    return _beat_within(store, run_id, _DEAD_SECONDS)


def _beat_within(store: Store, run_id: str, seconds: float) -> bool:
    """Tell whether a run's last heartbeat is so new, by the store's clock."""
    try:
        return abs(store.age("runs", run_id, "heartbeat.json")) < seconds
    except FileNotFoundError:
        return False


def _last(store: Store, run_id: str) -> Heartbeat | None:
    """Return a run's last heartbeat; None: there is none, or it is damaged."""
    try:
        last = json.loads(store.read_bytes("runs", run_id, "heartbeat.json"))
    except (FileNotFoundError, ValueError):
        return None
    known = isinstance(last, dict) and all(isinstance(last.get(name), int | float) for name in _NUMBERS)
    known = known and isinstance(last.get("host"), str)
    return cast(Heartbeat, last) if known else None


def _may_write(store: Store, run_id: str) -> bool:
    """Whether a dead run was alive a moment ago: its workers, which have no heartbeat, may still be at work."""
    return _last(store, run_id) is not None and _beat_within(store, run_id, _ORPHAN_SECONDS)


def _holders(corpus: Corpus, run_id: str, work: frozenset[str], *, wait: bool) -> Iterator[str]:
    """Yield the run that is in the way, until work is claimed."""
    while True:
        holder, does = _try(corpus, run_id, work)
        if not holder:
            return
        if not wait:
            raise RunningError(f"run {holder} {does}: leave --no-wait out to wait for it")
        yield holder


def _try(corpus: Corpus, run_id: str, work: frozenset[str]) -> tuple[str, str]:
    """Claim work; return the run that is in the way and what it does, both empty if there is none."""
    whole = Corpus(corpus.store, _WHOLE)
    if holder := _holder(whole):
        return holder, _ALONE
    if holder := _register(corpus, run_id, work):
        return holder, "does the same work"
    if holder := _holder(whole):  # it began in the meantime
        _change(corpus, lambda claims: claims.pop(run_id, None))
        return holder, _ALONE
    return "", ""


def _register(corpus: Corpus, run_id: str, work: frozenset[str]) -> str:
    """Claim work; return the run that has claimed some of it, empty if there is none."""
    holders: list[str] = []

    def change(claims: dict[str, list[str]]) -> None:
        holders.clear()
        dead = [name for name in claims if name != run_id and not is_alive(corpus.store, name)]
        for other in [name for name in dead if not _may_write(corpus.store, name)]:
            del claims[other]
        living = [name for name in claims if name not in {run_id, *dead}]
        holders.extend(name for name in living if not work.isdisjoint(map(str, claims[name])))
        if not holders:
            claims[run_id] = sorted(work)

    _change(corpus, change)
    return holders[0] if holders else ""


def _holder(corpus: Corpus) -> str:
    """Return a living run that has claims on a corpus, empty if there is none."""
    return next((run_id for run_id in _claims(corpus) if is_alive(corpus.store, run_id)), "")


def _claimants(store: Store, chosen: Callable[[Store, str], bool]) -> Iterator[str]:
    """Yield the chosen ones of the runs that have claims on any corpus."""
    names = [path.rsplit("/", 1)[-1].removesuffix(".json") for path in store.list("claims", suffix=".json")]
    for name in names:
        if name != _WHOLE:
            yield from (run_id for run_id in _claims(Corpus(store, name)) if chosen(store, run_id))


def _claims(corpus: Corpus) -> dict[str, list[str]]:
    try:
        return _parsed(corpus.store.read_bytes("claims", f"{corpus.name}.json"), corpus)
    except FileNotFoundError:
        return {}


def _change(corpus: Corpus, change: Callable[[dict[str, list[str]]], object]) -> None:
    def changed(before: bytes | None) -> bytes:
        claims = _parsed(before, corpus)
        change(claims)
        return json.dumps(claims, indent=1).encode()

    corpus.store.update_bytes(changed, "claims", f"{corpus.name}.json")


def _parsed(claims: bytes | None, corpus: Corpus) -> dict[str, list[str]]:
    try:
        parsed = json.loads(claims or b"{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(work, list) for work in parsed.values()):
        _log.warning("claims/%s.json of %s was corrupt; recreated", corpus.name, corpus.store.url)
        return {}
    return parsed


def _beat_until(store: Store, run_id: str, stop: threading.Event) -> None:
    while not stop.wait(_BEAT_SECONDS):
        try:
            beat(store, run_id)
        except OSError:  # a store that is briefly unavailable must not end the run
            continue


@cache
def _host() -> str:
    # Not by the time at which it started: the kernel reckons that back from the clock, so it moves when that is set.
    names = [socket.gethostname()]
    with suppress(OSError):  # sandboxes may lack them
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return "-".join(names)


def _started(process: int) -> int:
    """Return when a living process started, in ticks of the kernel; 0: there is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    state = status.rpartition(")")[2].split()  # the name of a program may have blanks and brackets
    return 0 if state[0] in "ZX" else int(state[19])  # one that ended stays until its parent has looked
