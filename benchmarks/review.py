"""Review pages with very many answers: lists, filters, verdicts and twenty reviewers at once, against a server process.

    python -m benchmarks.review [--answers 1000000] [--questions 20] [--reviewers 20] [--folder FOLDER]

The answers are made up (Delta files as workers write them); the review server is `memagent review` in a process of its
own, asked over HTTP. Times are what a browser waits for: from the request to the last byte of the page.
"""

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import duckdb
import httpx
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.record import Row, arguments, result, write
from infra.store.buckets import WHOLE
from infra.store.corpora import remember
from infra.store.data_files import write_data_file
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import ANSWERS, DOCUMENTS, TEXTS
from memagent.records import LEVELS, text_hash
from pipelines.views.visible_answers import AnswerRule, visible_answers
from pipelines.web.address import Address
from pipelines.web.server import listen

CORPUS = "contracts"
START = datetime(2026, 8, 1, 2, 15, tzinfo=UTC)
STATES = ("Delaware", "New York", "California", "Texas", "Nevada", "Illinois", "Ohio", "Utah")
PER_FILE = 2_500
"""Documents of a file of answers."""
FILTERS = {
    "question": "question=7",
    "not found": "state=not+found",
    "not checked yet": "review=open",
    "corrected": "review=corrected",
    "people disagree": "review=disputed",
    "others, not me yet": "by=others",
    "since the last scheduled run": "new=1",
    "low confidence": "level=low",
    "medium confidence": "level=medium",
    "most doubtful first": "order=confidence",
    "most doubtful first, not checked yet": "order=confidence&review=open",
    "most doubtful first, a question": "order=confidence&question=7",
    "words": "words=delaware",
    "rare words": "words=dela+document+049999",
    "all at once": "corpus=contracts&question=3&state=found&review=open&new=1&words=texas",
}
PAPER = (
    "The parties met at the office and agreed on the terms of this agreement. Notices are sent in writing. " * 12
    + "This Agreement shall be governed by the laws of the State of {state}. "
    + "Nothing in this section limits the right of a party to disclose what a court orders. " * 12
)


def make(store: Store, documents: int, questions: int) -> None:
    """Write documents and an answer to each question of each of them."""
    corpus = Corpus(store, CORPUS)
    remember(corpus, sources=["/archive"])
    for number, first in enumerate(range(0, documents, PER_FILE)):
        names = range(first, min(documents, first + PER_FILE))
        texts = {n: f"{PAPER.format(state=STATES[n % len(STATES)])} No. {n}." for n in names}
        hashes = {n: text_hash(text) for n, text in texts.items()}
        shared = {"seen_at": START, "first_seen": START, "source_stamp": "1", "encoding": "utf-8", "state": "present"}
        rows = [
            shared
            | dict(doc_id=f"document-{n:06d}.txt", content_hash=hashes[n], title=f"Agreement No. {n}")
            | dict(source=f"/archive/document-{n:06d}.txt", media_type="text/plain", size_bytes=1, chars=len(texts[n]))
            for n in names
        ]
        _commit(corpus, "documents", pa.Table.from_pylist([r | {"corpus": CORPUS} for r in rows], DOCUMENTS), number)
        said = [{"corpus": CORPUS, "content_hash": hashes[n], "text": texts[n]} for n in names]
        _commit(corpus, "texts", pa.Table.from_pylist(said, TEXTS), number)
        answers = [_answer(n, q, hashes[n], texts[n], number) for n in names for q in range(questions)]
        _commit(corpus, "answers", pa.Table.from_pylist(answers, ANSWERS), number)
    run = dict(corpus=CORPUS, run_id="scheduled", kind="digest", status="completed", config="{}", summary="{}")
    last = START + timedelta(minutes=documents // PER_FILE - 1)
    Table(store, "runs").append([run | {"started_at": last, "ended_at": last + timedelta(minutes=1)}])


def _answer(n: int, q: int, content_hash: str, text: str, number: int) -> dict[str, object]:
    state = STATES[n % len(STATES)]
    found, sure = (n + q) % 5 > 0, _confidence(n, q)
    quote = f"This Agreement shall be governed by the laws of the State of {state}."
    start = text.index(quote)
    piece = dict(content_hash=content_hash, segment_index=0, char_start=0, char_end=len(text))
    return dict(
        corpus=CORPUS,
        reading_id=f"{content_hash[:16]}{q:04x}",
        question_id=f"q{q}",
        question=f"Question {q}: which law governs the agreement?",
        scope="document",
        content_hash=content_hash,
        stream=[content_hash],
        policy_id="nano",
        config_hash="c",
        answer=state if found else "",
        found=found,
        confidence=sure,
        evidence=[piece | dict(quote=quote, quote_start=start, quote_end=start + len(quote), verbatim=True)]
        if found
        else [],
        segments=1,
        conversations=2,
        prompt_tokens=900,
        cached_tokens=0,
        output_tokens=20,
        seconds=0.1,
        engine_seconds=0.1,
        carried_from="",
        carried_segments=0,
        run_id="scheduled",
        answered_at=START + timedelta(minutes=number, microseconds=37 * n + q),
        memories_cut=0,
        memory_empty=False,
        confidence_level=LEVELS[(sure >= 0.5) + (sure >= 0.95)],
        warnings=[],
    )


def _confidence(n: int, q: int) -> float:
    """Return a confidence: 1 for few, below 0.5 for a tenth."""
    share = (n * 2654435761 + q * 40503) % 10_007 / 10_006
    return float(share**0.3)


def _commit(corpus: Corpus, name: str, rows: pa.Table, number: int) -> None:
    file = write_data_file(corpus, name, rows)
    Table(corpus.store, name).commit_files(corpus.name, [file], writer="benchmark", number=number)


class Served:
    """The review server in a process of its own."""

    def __init__(self, store: Store, home: Path, reviewers: list[str]) -> None:
        with closing(listen(Address(0))) as listening:
            self.port = listening.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "memagent", "review", "--store", store.url, "--port", str(self.port)]
        command += [f"--reviewer={name}" for name in reviewers]
        places = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
        self._environment = {**os.environ, **places}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)
        self.names: list[str] = []
        assert self.process.stdout is not None
        while "stop with" not in (line := self.process.stdout.readline()):
            assert line, "the review server did not start"
            if named := re.match(r"(\S+) logs in once with ", line):
                self.names.append(named[1])

    def log_in(self, name: str) -> tuple[httpx.Client, str]:
        """Return a browser of a person, and the CSRF token."""
        client = httpx.Client(base_url=self.address, headers={"Origin": self.address}, timeout=600)
        assert client.get(self.link(name)).status_code == 303
        found = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)
        assert found is not None
        return client, found[1]

    def link(self, name: str) -> str:
        """Return a new login link."""
        command = [sys.executable, "-m", "memagent", "review", "--port", str(self.port), "--link", name]
        return subprocess.check_output(command, text=True, env=self._environment).strip()

    def peak(self) -> float:
        """Return the peak of its memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate()


def timed(ask: Callable[[], httpx.Response], times: int, status: int = 200) -> list[float]:
    """Return the seconds of some requests."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        answer = ask()
        seconds.append(time.perf_counter() - began)
        assert answer.status_code == status, answer.text[:500]
    return seconds


def p95(seconds: list[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return round(1000 * statistics.quantiles(seconds, n=20)[-1], 1)


def review(served: Served, name: str, readings: Iterator[str], seed: int, pause: float = 0.0) -> list[float]:
    """Give verdicts, with about `pause` seconds between them; return the seconds of each."""
    client, csrf = served.log_in(name)
    rng = random.Random(seed)
    seconds = []
    with closing(client):
        for reading in readings:
            said, answer = rng.choice((("accepted", ""), ("rejected", ""), ("corrected", "Texas"), ("absent", "")))
            fields = {"csrf": csrf, "said": said, "answer": answer, "review": "open"}
            time.sleep(pause * rng.uniform(0.5, 1.5))
            path = f"/answers/{CORPUS}/{reading}/verdict"
            seconds += timed(partial(client.post, path, data=fields), 1, 303)
    return seconds


def measure(served: Served, given: argparse.Namespace) -> list[Row]:
    """Ask the review server, and return the times."""
    client, _ = served.log_in(served.names[0])
    rows = []
    began = time.monotonic()
    while "Reading what is new" in (page := client.get("/").text) or "no answers yet" in page:
        time.sleep(0.5)
    rows.append(Row("index made, first start", round(time.monotonic() - began, 1), "s", n=given.answers))
    first = timed(lambda: client.get("/"), 100)
    rows.append(Row("first page", p95(first), "ms", column="p95, alone", n=100))
    older = re.search(r'rel="next" href="([^"]+)"', client.get("/").text)
    assert older is not None
    deep = timed(lambda: client.get(f"/?after={10**18 * 7 + 310_000_000_000_000_000}"), 30)
    rows.append(Row("a page in the middle", p95(deep), "ms", column="p95, alone", n=30))
    readings = re.findall(rf"/answers/{CORPUS}/([0-9a-f]+)", client.get("/").text)
    sample = [f"/answers/{CORPUS}/{reading}" for reading in dict.fromkeys(readings)]
    opened = iter(sample * 2)
    rows.append(
        Row("an answer beside its document", p95(timed(lambda: client.get(next(opened)), 40)), "ms", "p95, alone", n=40)
    )
    alone = review(served, served.names[0], iter(_readings(given, 200, 1)), 1)
    rows.append(Row("verdict", p95(alone), "ms", column="p95, alone", n=len(alone)))
    each = given.verdicts
    for pause, said in ((1.0, "one a second each"), (0.0, "without a pause")):
        chosen = _readings(given, given.reviewers * each, 2 + int(pause))
        with ThreadPoolExecutor(given.reviewers) as threads:
            work = [
                threads.submit(review, served, name, iter(chosen[i * each : (i + 1) * each]), i, pause)
                for i, name in enumerate(served.names[-given.reviewers :])
            ]
            crowd = [seconds for done in work for seconds in done.result()]
        column = f"p95, {given.reviewers} at once"
        rows.append(Row(f"verdict, {said}", p95(crowd), "ms", column=column, n=len(crowd)))
    for name, query in FILTERS.items():
        seconds = timed(partial(client.get, f"/?{query}"), 20)
        rows.append(Row(f"filter: {name}", p95(seconds), "ms", column="p95, alone", n=20))
    with ThreadPoolExecutor(given.reviewers) as threads:
        names = served.names[-given.reviewers :]
        browsers = [served.log_in(name)[0] for name in names]
        work = [threads.submit(timed, partial(b.get, "/?review=open"), 20) for b in browsers]
        crowd = [seconds for done in work for seconds in done.result()]
    rows.append(Row("first page", p95(crowd), "ms", column=f"p95, {given.reviewers} at once", n=len(crowd)))
    rows.append(Row("peak memory of the review server", round(served.peak()), "MiB"))
    return rows


def without_index(store: Store) -> list[Row]:
    """Return how long a page takes, and what it holds, that asks the tables each time, and one of a table in memory."""
    corpus, none = Corpus(store, CORPUS), AnswerRule((), (), None)
    answers = DeltaTable(store.path("answers")).to_pyarrow_dataset()
    newest = "row_number() over (partition by content_hash, question order by answered_at desc, reading_id)"
    query = f"select reading_id, answer from answers qualify {newest} = 1 order by answered_at desc limit 50"

    def by_duckdb() -> None:
        with duckdb.connect() as database:
            database.register("answers", answers)
            assert len(database.sql(query).fetchall()) == 50

    columns = ["question_id", "answer", "found", "confidence", "evidence"]
    held: list[pa.Table] = []

    def by_arrow() -> None:
        held[:] = [visible_answers(corpus, WHOLE, none, columns)]

    def by_words() -> None:
        found = pc.match_substring(held[0]["answer"], "delaware", ignore_case=True)
        assert held[0].take(pc.indices_nonzero(found)[-50:]).to_pylist()

    rows = []
    ways: tuple[tuple[str, Callable[[], None]], ...] = (
        ("without an index: DuckDB on the tables", by_duckdb),
        ("without an index: Arrow on the tables", by_arrow),
        ("without an index: words, of a table in memory", by_words),
    )
    for name, ask in ways:
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            ask()
            seconds.append(time.perf_counter() - began)
        rows.append(Row(name, round(1000 * statistics.median(seconds), 1), "ms", column="median", n=3))
    return [*rows, Row("the table in memory", round(held[0].nbytes / 2**20), "MiB")]


def _readings(given: argparse.Namespace, count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    documents = given.answers // given.questions
    chosen = []
    for _ in range(count):
        n = rng.randrange(documents)
        name = text_hash(f"{PAPER.format(state=STATES[n % len(STATES)])} No. {n}.")
        chosen.append(f"{name[:16]}{rng.randrange(given.questions):04x}")
    return chosen


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--reviewers", type=int, default=20)
    parser.add_argument("--verdicts", type=int, default=50, help="of each reviewer")
    parser.add_argument("--folder", type=Path, default=None, help="keep store and index here, and use them again")
    arguments(parser)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="review-"))
    store = Store(str(folder / "store"))
    if not Table(store, "answers").count(CORPUS):
        began = time.monotonic()
        make(store, given.answers // given.questions, given.questions)
        print(f"store made in {time.monotonic() - began:.0f} s", flush=True)
    served = Served(store, folder, [f"person{i}" for i in range(given.reviewers)])
    try:
        rows = measure(served, given)
        index = sum(path.stat().st_size for path in (folder / "cache").rglob("*.sqlite"))
        rows.append(Row("index on disk", round(index / 2**20), "MiB"))
        stored = Table(store, "feedback")
        served.stop()
        given_now = 200 + 2 * given.reviewers * given.verdicts
        rows += without_index(store)
        rows.append(Row("verdicts in the table afterwards", stored.count(CORPUS), f"at least {given_now}"))
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()
        if given.folder is None:
            shutil.rmtree(folder)
    for row in rows:
        print(f"{row.name:32} {row.column:20} {row.value} {row.unit}")
    write(result("review", f"Review pages with {given.answers:,} answers", rows, given))


if __name__ == "__main__":
    main()
