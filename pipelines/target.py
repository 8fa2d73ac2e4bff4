"""What a question is asked of: a corpus by its name, or a folder, file, glob or URL, of which a corpus is made."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.sources.diff import make_plan
from infra.store.corpora import check_name, corpora, remember, sources_of
from infra.store.documents import current_sources, documents_count, has_documents
from infra.store.location import Corpus, Store
from infra.store.runs import RunExtras, RunSummary, run_id_or_new
from infra.store.schemas import now
from memagent.config import Config
from memagent.errors import UsageError
from memagent.records import Progress, stable_hash
from pipelines.ask import AskRequest, check_window, prepare_engine, run_readings
from pipelines.stages.ingest import ingest

_PATH = re.compile(r"[/\\*?\[~]|^\.")
"""Marks of a path: no corpus has them in its name, but for a dot that is not its first letter."""
_NAME_LENGTH = 48


@dataclass(frozen=True, slots=True)
class Target:
    """A corpus, and what it is brought up to date with before it is asked."""

    corpus: Corpus
    sources: tuple[str, ...] = ()
    """Absolute; empty: the corpus is asked as it is."""


def find_target(store: Store, given: str, *, fetch: bool = True) -> Target:
    """Find what a user means by a corpus's name or a path.

    A corpus of that name is that corpus. If it was made of the folder of that name in the current directory, or if a
    path is given, the folder is looked at first (`fetch`). A path gets the corpus that was made of it alone; where
    there is none, a new one, which is named after the path's last folder or file.

    Raises UsageError: it is neither a corpus nor a path (the message names the nearest corpus or file), or it is
        both, and the corpus has no source in, or around, the folder.
    """
    if not given.strip():
        raise UsageError("nothing is asked: give a corpus, a folder, a glob, a file or an s3:// URL")
    source = absolute(given)
    known = corpora(store)
    if given in known:
        corpus = Corpus(store, given)
        sources = sources_of(corpus)
        local = [os.path.abspath(one) for one in sources if "://" not in one]
        apart = not any(os.path.commonpath([one, source]) in (one, source) for one in local)
        if fetch and sources and apart and os.path.isdir(source):
            raise UsageError(
                f"{given!r} is a corpus of {store.url}, and a folder here that is none of its sources: write ./{given} "
                "for the folder, or give --no-fetch for the corpus as it is"
            )
        its_own = fetch and source in sources and os.path.exists(source)
        return Target(corpus, (source,) if its_own else ())
    if not _PATH.search(given) and not os.path.exists(source):
        return Target(_corpus(store, check_name(given), known))
    name = _corpus_of(store, source, known)
    return Target(Corpus(store, name), (source,) if fetch or name not in known else ())


def absolute(source: str) -> str:
    """Return a source as it is remembered: workers and later runs have other working directories.

    Raises UsageError: it is empty.
    """
    if not source.strip():
        raise UsageError("a source is empty: give a folder, a glob, a file or an s3:// URL")
    return source if "://" in source else str(Path(source).expanduser().absolute())


def ask_target(asked: Target, request: AskRequest, show: Progress | None = None) -> RunSummary:
    """Bring a corpus up to date with its sources, remember them, and ask; return the run's summary.

    The request's `name` is the corpus's, and its `run_id` names the ingest's rows, too.

    Raises:
        UsageError: a source does not exist, or matches nothing; or as `pipelines.ask.ask`.
        MemagentError: the engine cannot be started.
    """
    started, run_id = now(), run_id_or_new(request.run_id)
    if asked.sources:
        reader = ReaderSpec(request.config)
        check_window(reader, request.questions)  # before hours of ingest
        if not has_documents(asked.corpus):
            prepare_engine(reader, request.config)
    with lazy_ray(request.config.ray):
        extra = RunExtras(**request.extra)
        if asked.sources:
            extra["ingest"] = ingest(asked.corpus, list(asked.sources), request.config, run_id=run_id, progress=show)
            remember(asked.corpus, sources=asked.sources)
        return run_readings(replace(request, run_id=run_id, started=started, extra=extra), show)


def news(asked: Target, config: Config) -> str:
    """Return a name for what is new, changed or gone among the sources since they were ingested; empty: nothing.

    Sources are listed, and none is opened.
    """
    plan = make_plan(list(asked.sources), current_sources(asked.corpus), config.ingest, sources_of(asked.corpus))
    if not plan.work.num_rows and not plan.gone.num_rows:
        return ""
    return stable_hash(*(plan.work[name].to_pylist() for name in ("source", "stamp")), plan.gone["source"].to_pylist())


def _corpus(store: Store, name: str, known: Sequence[str]) -> Corpus:
    """Return a corpus that has documents though no settings, as in early stores; see `check_known` for the others."""
    corpus = Corpus(store, name)
    if documents_count(corpus):
        return corpus
    local = [path.name for path in Path().iterdir() if not path.name.startswith(".")]
    near = get_close_matches(name, known, n=1) or [f"./{match}" for match in get_close_matches(name, local, n=1)]
    advice = f"did you mean {near[0]!r}?" if near else f"memagent ingest {name} FOLDER, or memagent ask FOLDER"
    raise UsageError(f"there is no corpus {name!r} in {store.url}, and no file or folder of that name here: {advice}")


def _corpus_of(store: Store, source: str, known: Sequence[str]) -> str:
    """Return the name of the corpus that is made of a source: the one that has it alone, or a name that is free."""
    parts = [part for part in source.split("://")[-1].split("/") if part and not re.search(r"[*?\[]", part)]
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-._")[:_NAME_LENGTH]
    name = check_name(word) if word else f"archive-{stable_hash(source)[:6]}"
    for candidate in sorted(known, key=lambda other: (other != name, other)):
        if sources_of(Corpus(store, candidate)) == [source]:
            return candidate
    return name if name not in known else f"{name}-{stable_hash(source)[:6]}"
