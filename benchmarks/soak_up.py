"""Hours of `memagent up` with a digest every minute, beside `memagent serve`, kills and verdicts.

    python -m benchmarks.soak_up [--hours 6] [--kill 300] [--change 60]

A folder changes all the time: texts come, change and go. `memagent up` digests it every minute, by the scripted engine;
`memagent serve` has the review pages, the API and the metrics open. Verdicts are given on the pages, questions asked of
the API, pages and metrics read. The process of a flow run, the server, and `memagent up` itself are killed by SIGKILL
in turn; the last two alone, without what they have started, which must end by itself, and are started again. At the end
the answers are compared with those of a store that read the last state of the folder once, and the verdicts in the
store with those that the pages took; what grew is told, too.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pyarrow as pa

from benchmarks.record import Row, arguments, result, write
from benchmarks.soak import Life, grown
from infra.store.buckets import WHOLE
from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.system.processes import tree
from memagent.nano import bundled
from memagent.questions import ask
from pipelines.views.visible_answers import AnswerRule, visible_answers
from tests.support.flowing import Served, killed
from tests.support.flowing import serving as up
from tests.support.serving import Endpoint
from tests.support.serving import serving as serve

CORPUS = "notes"
QUESTION = "What is the pass number for amber-otter?"
_PORT = 23_900
_WORDS = "of a party shall notify region color table file index under term".split()
_LOGIN = f"""
from pipelines.web.access import login_link
from pipelines.web.address import Address
print(login_link(Address({_PORT}), "Ann"))
"""
_TURN = ("flow run", "server", "flow run", "memagent up")
_TITLES = {
    "memagent up": "memagent up ",
    "Prefect's server": "prefect.server",
    "server": "memagent serve ",
}


class Folder:
    """A folder of texts that changes."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._rng, self._made = path, random.Random(0), 0
        path.mkdir()
        for _ in range(size):
            self._write()

    def change(self) -> None:
        """Add two texts, change one, delete one or two."""
        names = sorted(self._path.iterdir())
        for path in self._rng.sample(names, self._rng.randint(1, 2)):
            path.unlink()
        self._write(self._rng.choice(sorted(self._path.iterdir())))
        self._write()
        self._write()

    def _write(self, path: Path | None = None) -> None:
        self._made += 1
        words = " ".join(self._rng.choices(_WORDS, k=120))
        text = f"{words}.\n\nThe pass number for amber-otter is {self._made}.\n\n{words}."
        (path or self._path / f"note-{self._made:06}.txt").write_text(text, encoding="utf-8")


class Soak:
    """The services, their kills, and what people do meanwhile."""

    def __init__(self, base: Path, sets: list[str]) -> None:
        self.base, self.sets, self.folder = base, sets, Folder(base / "texts", 40)
        self.kills, self.lives, self.done = Counter[str](), dict[int, Life](), Counter[str]()
        self.judged, self.outlived = dict[str, str](), 0
        self._rng, self._scopes = random.Random(1), {"up": ExitStack(), "server": ExitStack()}
        self.store = Store(str(base / "up" / "store"))
        (base / "up").mkdir()
        (base / "serve").mkdir()
        remember(Corpus(self.store, CORPUS), sources=[str(base / "texts")], questions=[ask(QUESTION)])
        self._up, self._server = self._start_up(), self._start_server()

    def _start_up(self) -> Served:
        options = ("--cron", "* * * * *", "--optimize-cron", "*/7 * * * *")
        return self._scopes["up"].enter_context(up(self.base / "up", self.sets, 900, options))

    def _start_server(self) -> Endpoint:
        options = ["--reviewer", "Ann", *(part for item in self.sets for part in ("--set", item))]
        made = serve(self.base / "serve", self.store.url, _PORT, options)
        return self._scopes["server"].enter_context(made)

    def kill(self, target: str) -> None:
        """Kill one of the processes by SIGKILL; what a user starts is started again."""
        if target == "flow run":
            runs = [
                one for one in tree(self._up.process.pid) if "prefect.engine" in _line(one) or "execute" in _line(one)
            ]
            for one in runs:
                with suppress(psutil.Error):
                    one.send_signal(signal.SIGKILL)
            self.kills[target] += bool(runs)
            return
        self.kills[target] += 1
        name, process = ("server", self._server.process) if target == "server" else ("up", self._up.process)
        below = tree(process.pid)[1:]
        process.kill()
        _, left = psutil.wait_procs(below, timeout=60)
        self.outlived += len(left)
        killed(left)
        with suppress(AssertionError):  # that the server ended by our signal is no news
            self._scopes[name].close()
        self._scopes[name] = ExitStack()
        if target == "server":
            self._server = self._start_server()
        else:
            self._up = self._start_up()

    def people(self) -> None:
        """Give a verdict, ask a question, and look at pages and metrics, as far as the server answers."""
        with httpx.Client(base_url=self._server.base, follow_redirects=True, timeout=60) as client:
            client.get(self._login())
            page = client.get("/")
            self._count("pages", page)
            token = re.search(r'name="csrf" value="([^"]+)"', page.text)
            key = {"Authorization": f"Bearer {self._server.token}"}
            word = (self.base / "serve/config/memagent/metrics/token").read_text().strip()
            self._count("metrics", client.get("/metrics", headers={"Authorization": f"Bearer {word}"}))
            body: dict[str, object] = {"model": "memagent", "messages": [{"role": "user", "content": QUESTION}]}
            body["document"] = "The pass number for amber-otter is 7."
            self._count("API answers", client.post("/v1/chat/completions", headers=key, json=body))
            left = sorted(set(shown(self.store)["reading_id"].to_pylist()) - self.judged.keys())
            if token and left:
                reading, said = self._rng.choice(left), self._rng.choice(["accepted", "rejected"])
                answer = client.post(
                    f"/answers/{CORPUS}/{reading}/verdict",
                    data={"csrf": token[1], "said": said},
                    headers={"Origin": self._server.base},
                    follow_redirects=False,
                )
                if answer.status_code == 303:
                    self.judged[reading] = said
                self.done[f"verdicts, status {answer.status_code}"] += 1

    def _login(self) -> str:
        places = {f"XDG_{name}_HOME": str(self.base / "serve" / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
        made = subprocess.run(
            [sys.executable, "-c", _LOGIN], env=os.environ | places, capture_output=True, text=True, check=True
        )
        return made.stdout.strip()

    def _count(self, what: str, answer: httpx.Response) -> None:
        self.done[what if answer.status_code == 200 else f"{what}, status {answer.status_code}"] += 1

    def look(self) -> None:
        """Note what the services hold now."""
        for root in (self._up.process.pid, self._server.process.pid):
            for process in tree(root):
                with suppress(psutil.Error):
                    line = _line(process)
                    title = next((title for title, part in _TITLES.items() if part in line), None)
                    if title:
                        self.lives.setdefault(process.pid, Life(title)).see(process)

    def stop(self) -> None:
        """End the services as Ctrl-C does."""
        for scope in self._scopes.values():
            scope.close()


def _line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline()) + " "
    return ""


def digest(store: Store, sets: list[str]) -> None:
    """Digest the corpus once."""
    argv = [sys.executable, "-m", "memagent", "digest", CORPUS, "--store", store.url, "--no-answers"]
    subprocess.run([*argv, *(part for item in sets for part in ("--set", item))], stdout=subprocess.DEVNULL, check=True)


def shown(store: Store) -> pa.Table:
    """Return the answers that people are shown, of texts that were deleted, too."""
    corpus = Corpus(store, CORPUS)
    return visible_answers(corpus, WHOLE, AnswerRule.of(corpus), ["answer"])


def answers(store: Store) -> dict[str, str]:
    """Return the same by text."""
    table = shown(store)
    return dict(zip(table["content_hash"].to_pylist(), table["answer"].to_pylist(), strict=True))


def measure(given: argparse.Namespace, base: Path) -> list[Row]:
    """Run the services, and compare what they leave."""
    sets = ["engine.kind=scripted", f"engine.model={bundled()}", "reading.segment_tokens=64", *given.set]
    soak, began = Soak(base, sets), time.monotonic()
    kill, change, turn = began + given.kill, began + given.change, 0
    while (now := time.monotonic()) < began + given.hours * 3600:
        if now >= change:
            soak.folder.change()
            change = now + given.change
        if now >= kill:
            soak.kill(_TURN[turn % len(_TURN)])
            turn, kill = turn + 1, time.monotonic() + given.kill
        with suppress(httpx.HTTPError):
            soak.people()
        soak.look()
        time.sleep(5)
        print(f"{(now - began) / 60:.0f} min", dict(soak.kills), dict(soak.done), len(soak.judged), flush=True)
    soak.stop()
    calm = Store(str(base / "calm"))
    remember(Corpus(calm, CORPUS), sources=[str(base / "texts")], questions=[ask(QUESTION)])
    for store in (soak.store, calm):
        digest(store, sets)
    found, expected = answers(soak.store), answers(calm)
    rows = Table(soak.store, "feedback").read(CORPUS, ["reading_id", "verdict"]).to_pylist()
    kept = {row["reading_id"]: row["verdict"] for row in rows}
    check = [sys.executable, "-m", "memagent", "check", CORPUS, "--store", soak.store.url]
    return [
        Row("minutes", round((time.monotonic() - began) / 60, 1)),
        Row("kills", soak.kills.total(), note=", ".join(f"{n} {target}" for target, n in sorted(soak.kills.items()))),
        Row("processes that outlived what had started them", soak.outlived),
        *(Row(what, n) for what, n in sorted(soak.done.items())),
        Row(
            "answers that differ from a store that was never killed",
            sum(found.get(k) != v for k, v in expected.items()),
            n=len(expected),
        ),
        Row(
            "verdicts that were taken and are lost",
            sum(kept.get(k) != v for k, v in soak.judged.items()),
            n=len(soak.judged),
        ),
        Row("status of memagent check", subprocess.run(check, stdout=subprocess.DEVNULL).returncode),
        *grown(soak.lives.values(), _TITLES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--kill", type=float, default=300, help="seconds between two kills")
    parser.add_argument("--change", type=float, default=60, help="seconds between two changes of the folder")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="memagent-soak-up-"))
    try:
        write(result("soak-up", "memagent up and serve, killed in turn", measure(given, base), given))
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
