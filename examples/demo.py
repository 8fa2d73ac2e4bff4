"""The demo: an archive from any machine's files, with planted needles whose answers are known.

The archive is the READMEs, licences and descriptions of the installed packages. A nightly digest and a bulk answering
run use Prefect and vLLM, as on any other archive of this size; a larger one would use Ray Data.
"""

import hashlib
import importlib.metadata
import json
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memagent.config import Config, load_config
from memagent.evaluation.needles import KINDS, Kind, Needle, make_needles, plant
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer
from memagent.records import Json, text_hash
from pipelines.flows.serve import Server, variables
from pipelines.web.address import Address
from pipelines.web.server import listen

if TYPE_CHECKING:
    from infra.store.runs import RunSummary
    from pipelines.io.answers import GivenAnswer

DOCUMENTS = 64
MOST_SEGMENTS = 16
CORPUS = "demo"
_DEFAULTS = 2
_NAMES = ("readme", "license", "licence", "notice", "authors", "copying", "changelog", "metadata")


def demo(folder: Path, sets: list[str] | None = None) -> int:
    """Make the archive, digest it, answer questions over it; return the exit status."""
    began = time.monotonic()
    store = str((folder / "store").resolve())
    config = load_config(sets=sets, store=store)
    os.environ["MEMAGENT_CONFIG"] = config.model_dump_json(exclude_unset=True)  # flows read it from the environment
    # Prefect's server and the engine take ten seconds each to start, most of it on one core.
    with _prefect(folder.resolve() / "prefect") as server:
        from infra.readers import ReaderSpec
        from pipelines.ask import prepare_engine

        if not (folder / "store").exists():
            prepare_engine(ReaderSpec(config), config)
        questions, defaults = make_archive(folder, config)
        print(f"archive: {len(list((folder / 'archive').iterdir()))} documents in {folder / 'archive'}")

        from infra.store.corpora import remember
        from infra.store.location import Corpus, Store
        from memagent.questions import load_questions
        from pipelines.cli.live import Display
        from pipelines.flows import answer_archive, digest_corpus, watcher

        sources = [str((folder / "archive").resolve())]
        remember(Corpus(Store(store), CORPUS), sources=sources, questions=load_questions(str(defaults)))
        if server is not None:
            server.wait()
        print("\nnightly digest: default questions, of every document that is new or changed", flush=True)
        with Display() as display:
            watcher.set(display.update)
            nightly = cast("RunSummary", digest_corpus(CORPUS, store=store, sets=sets))
        print("\nbulk answering: one question per document", flush=True)
        with Display() as display:
            watcher.set(display.update)
            bulk = cast("RunSummary", answer_archive(CORPUS, questions_file=str(questions), store=store, sets=sets))
        return _show(config, nightly, bulk, time.monotonic() - began)


def _prefect(home: Path) -> AbstractContextManager[Server | None]:
    """Return a Prefect server with its state in the demo's folder; None if the user has a server.

    Must be called before Prefect is imported, which reads its settings from the environment then.
    """
    home = Path(os.environ.setdefault("PREFECT_HOME", str(home)))
    home.mkdir(parents=True, exist_ok=True)  # the server opens its database there, maybe before Prefect creates it
    # Prefect takes these two from ~/.prefect regardless of PREFECT_HOME, and warns if that does not exist.
    os.environ.setdefault("PREFECT_SERVER_MEMO_STORE_PATH", str(home / "memo_store.toml"))
    os.environ.setdefault("PREFECT_RESULTS_LOCAL_STORAGE_PATH", str(home / "storage"))
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    if "PREFECT_API_URL" in os.environ:
        return nullcontext()
    address, auth = Address(_free_port()), f"demo:{secrets.token_urlsafe(32)}"
    server = Server(address, {**os.environ, **variables(address, auth), "PREFECT_UI_ENABLED": "false"})
    os.environ.update(PREFECT_API_URL=f"{server.url}/api", PREFECT_API_AUTH_STRING=auth)
    return server


def make_archive(folder: Path, config: Config) -> tuple[Path, Path]:
    """Write the archive and its questions unless they exist; return the two question files.

    Documents are cut to at most sixteen segments of the configured reader. The same machine gives the same archive.
    """
    from infra.readers import ReaderSpec

    questions, defaults = folder / "questions.jsonl", folder / "default.jsonl"
    if defaults.exists():
        return questions, defaults
    archive = folder / "archive"
    archive.mkdir(parents=True, exist_ok=True)
    reader = ReaderSpec(config)
    rng = random.Random(2507)
    names_and_texts = list(_texts(reader.tokenizer, reader.reading.segment_tokens))
    default_needles = [make_needles(rng, kind, 1)[0] for kind in KINDS[:_DEFAULTS]]
    rows = []
    for i, (name, text) in enumerate(names_and_texts):
        kind: Kind = KINDS[i % len(KINDS)]
        needles = make_needles(rng, kind, 1 + i % 3)
        asked = needles[0]
        unanswerable = i % 8 == 7  # right is "not found", in spite of distractors
        planted = [n for n in needles if not (unanswerable and n is asked)]
        planted += [needle for j, needle in enumerate(default_needles) if (i + j) % 4 == 0]
        text, _ = plant(text, [n.sentence for n in planted], rng)
        (archive / name).write_text(text, encoding="utf-8")
        rows.append(_question(f"own-{i:03}", asked, "" if unanswerable else asked.value, name))
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked_of_all = [{"id": f"default-{j}", "question": needle.question} for j, needle in enumerate(default_needles)]
    defaults.write_text("".join(json.dumps(row) + "\n" for row in asked_of_all), encoding="utf-8")
    return questions, defaults


def _question(identity: str, needle: Needle, gold: str, document: str) -> Json:
    return {"id": identity, "question": needle.question, "answers": [gold], "documents": [document]}


def _texts(tokenizer: Tokenizer, segment_tokens: int) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of the documents of installed packages, each text once."""
    seen: set[str] = set()
    uses: Counter[str] = Counter()
    for name, _, text in sorted(_installed(), key=lambda item: hashlib.sha256(item[1].encode()).digest()):
        if text_hash(text) in seen or len(text) < 2000:
            continue
        seen.add(text_hash(text))
        cut = list(segments("", text, tokenizer, segment_tokens))
        # Room for the planted sentences; sizes spread from a few segments to sixteen.
        most = min(len(cut), 2 + len(seen) % (MOST_SEGMENTS - 2))
        uses[name] += 1
        suffix = f"-{uses[name]}" if uses[name] > 1 else ""
        yield f"{name}{suffix}.txt", text[: cut[most - 1].char_end]
        if len(seen) == DOCUMENTS:
            return


def _installed() -> Iterator[tuple[str, str, str]]:
    """Yield (short name, path, text) of such files of installed packages; short names may repeat."""
    for distribution in importlib.metadata.distributions():
        package = str(distribution.metadata["Name"])
        for file in distribution.files or []:
            if not file.name.lower().startswith(_NAMES):
                continue
            try:
                text = Path(str(distribution.locate_file(file))).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            yield f"{package}-{file.name.split('.')[0]}".lower(), str(file), text


def _free_port() -> int:
    with closing(listen(Address(0))) as listening:
        return int(listening.getsockname()[1])


def _show(config: Config, nightly: "RunSummary", bulk: "RunSummary", seconds: float) -> int:
    from rich.console import Console

    from pipelines.cli.live import answers_table, summary
    from pipelines.io.answers import answer_table

    console = Console()
    for name, run in (("nightly digest", nightly), ("bulk answering", bulk)):
        console.print(f"\n[bold]{name}[/]")
        summary(console, run)
        if not run["readings"]["read_now"] and not run["readings"]["failed"]:
            console.print("nothing was read again: every document and question was answered before")
    example = next((row for row in answer_table(config, CORPUS, bulk["run_id"]) if _right(row)), None)
    if example is not None:
        console.print("\n[bold]one of the answers[/]")
        answers_table(console, [example])
    console.print("\n[bold]reports[/] (one file each, to open in a browser)", highlight=False)
    for run in (nightly, bulk):  # paths unbroken, so that they can be clicked and copied
        console.print(f"  {run['report']}", soft_wrap=True, highlight=False)
    console.print(f"demo: {seconds:.0f} s", highlight=False)
    return 1 if nightly["readings"]["failed"] or bulk["readings"]["failed"] else 0


def _right(row: "GivenAnswer") -> bool:
    return bool(row["found"] and row["evidence"] and row["answer"] in (row["gold"] or []))


if __name__ == "__main__":
    sys.exit(demo(Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo"), sys.argv[2:] or None))
