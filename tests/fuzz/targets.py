"""What is fuzzed, and what must hold of each input: an error of ours or a result, soon, and no good row lost."""

import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.maintenance.integrity import unreadable
from infra.sources import Parsed, parse
from infra.sources.dataset_files import DatasetFile
from infra.sources.sandbox_child import guarded
from infra.store.location import Corpus, Store
from infra.store.schemas import TURNS
from infra.store.turns import logged_conversations, resume_points
from memagent.config import IngestConfig, load_config
from memagent.errors import MemagentError
from memagent.evaluation.loaders import load_samples
from memagent.questions import load_questions
from tests.support.hostile import pdf, word
from tests.support.office import epub, odt, pptx, shape
from tests.support.outlook import msg

_SECONDS = 20.0
"""Of one input of at most 64 KiB, on a machine that does other things beside."""
_OPTIONS = IngestConfig(max_bytes=2**22)
_GOOD = '{"text": "good %d"}\n'


@dataclass(frozen=True)
class Target:
    """Something that takes bytes from outside."""

    seeds: tuple[bytes, ...]
    check: Callable[[bytes, Path], None]
    """Raises if an input is not handled; gets a folder for files."""


@contextmanager
def soon() -> Iterator[None]:
    """Fail if what is done within takes long."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < _SECONDS, "it took too long"


def _source(suffix: str) -> Callable[[bytes, Path], None]:
    def check(data: bytes, folder: Path) -> None:
        path = folder / f"a{suffix}"
        path.write_bytes(data)
        with soon():
            # What the parser's process makes of it: texts and rows refused, then an error of ours, whatever was raised.
            error = guarded(lambda: [record for record in parse(str(path), path.name, _OPTIONS)])
        assert error is None or (error.reason and "\n" not in error.detail)

    return check


def _beside_good_lines(data: bytes, folder: Path) -> None:
    path = folder / "a.jsonl"
    line = data.replace(b"\n", b" ").replace(b"\r", b" ")
    path.write_bytes(_GOOD.encode() % 1 + line + b"\n" + _GOOD.encode() % 2)
    found: list[str] = []

    def read() -> None:
        found.extend(record.text for record in parse(str(path), path.name, _OPTIONS) if isinstance(record, Parsed))

    with soon():
        error = guarded(read)
    assert error is None or error.reason in ("encoding", "binary", "bomb", "too-large"), error
    assert error is not None or {"good 1", "good 2"} <= set(found), found


def _refused_plainly(suffix: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    def check(data: bytes, folder: Path) -> None:
        path = folder / f"a{suffix}"
        path.write_bytes(data)
        with soon(), suppress(MemagentError):
            read(path)

    return check


def _turn_log(data: bytes, folder: Path) -> None:
    corpus = Corpus(Store(str(folder / "store")), "c")
    part = folder / "store" / "turns" / "c" / "run" / f"{uuid.uuid4().hex}.parquet"  # a part is written once
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(data)
    with soon():
        unreadable(corpus.store, str(part))
        with suppress(MemagentError):
            resume_points(corpus, ["r"])
        with suppress(MemagentError):
            logged_conversations(corpus, ["r"])
    part.unlink()


def _turns() -> bytes:
    row = {field.name: _value(field.type) for field in TURNS} | {"reading_id": "r", "corpus": "c"}
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row, row], schema=TURNS), buffer)
    return buffer.getvalue()


def _value(kind: pa.DataType) -> object:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "x"
    if pa.types.is_boolean(kind):
        return False
    return 1 if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None


def _parquet(**columns: list[object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


_JSON = json.dumps({"text": "one", "title": "t", "id": 1}).encode()
_SQUAD = {"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "c"}]}]}]}]}
_HOTPOT = {"_id": "1", "question": "q?", "answer": "a", "context": [["T", ["One a.", "Two."]]]}
_RULER = {"index": 0, "input": "Find it.\n" + "text " * 20 + "\nWhat?", "outputs": ["a"], "length": 30}
_TOML = b'store = "x"\n[engine]\nkind = "scripted"\n[reading]\nsegment_tokens = 512\n[ingest]\nmax_bytes = 10\n'


def _packed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "One text.")
        archive.writestr("b/rows.csv", "id,text\n1,one\n")
    return file.getvalue()


_SOURCES = {
    ".txt": (b"One text.\n\nWith \xc3\xa4 and more.",),
    ".md": (b"---\ntitle: x\n---\n# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",),
    ".html": (b"<html><head><title>t</title></head><body><p>one</p><table><tr><td>x</td></tr></table></body></html>",),
    ".csv": (b"id,text,title\n1,one,t\n2,two,u\n", b'id;text\n1;"a ""b"" c"\n'),
    ".tsv": (b"id\ttext\n1\tone\n",),
    ".json": (b"[" + _JSON + b"]", _JSON),
    ".jsonl": (_JSON + b"\n" + _JSON + b"\n",),
    ".parquet": (_parquet(text=["one", "two"], id=["a", "b"]),),
    ".eml": (b"From: a@b\nSubject: s\nContent-Type: multipart/mixed; boundary=x\n\n--x\n\none\n--x--\n",),
    ".rtf": (rb"{\rtf1\ansi{\fonttbl\f0 Arial;}\f0 One \'e4 text.\par}",),
    ".pdf": (pdf("One text."),),
    ".docx": (word("One text."),),
    ".odt": (odt("<text:p>One text.</text:p>"),),
    ".pptx": (pptx({"s": shape("One text.")}),),
    ".epub": (epub(("one", "two")),),
    ".msg": (msg({0x37: "s", 0x1000: "One text."}, ({0x3707: "a.pdf"},)),),
    ".mbox": (b"From a@b\nFrom: a@b\nSubject: s\n\none\n\nFrom c\nFrom: c@d\nSubject: t\n\ntwo\n",),
    ".zip": (_packed(),),
}
TARGETS: dict[str, Target] = {
    **{f"source {suffix}": Target(seeds, _source(suffix)) for suffix, seeds in _SOURCES.items()},
    "rows beside a bad one": Target((_JSON, b"", b'{"text": 1}'), _beside_good_lines),
    **{
        f"questions {suffix}": Target(seeds, _refused_plainly(suffix, lambda path: load_questions(str(path))))
        for suffix, seeds in {
            ".jsonl": (b'{"question": "q?", "id": "a", "answers": ["x"], "documents": ["*.pdf"]}\n',),
            ".csv": (b"question,answers,documents\nq?,x|y,a*\n",),
            ".toml": (b'[[question]]\nquestion = "q?"\nanswers = ["x"]\n',),
        }.items()
    },
    "configuration": Target((_TOML,), _refused_plainly(".toml", lambda path: load_config(str(path)))),
    "turn log": Target((_turns(),), _turn_log),
    "evaluation file": Target(
        tuple(json.dumps(one).encode() + b"\n" for one in (_SQUAD, _HOTPOT, _RULER)),
        _refused_plainly(".jsonl", lambda path: list(load_samples(path))),
    ),
    "data set": Target(
        (b'{"question": "q?", "text": "one a", "answers": ["a"]}\n', _JSON + b"\n"),
        _refused_plainly(".jsonl", lambda path: DatasetFile(str(path))),
    ),
    "data set in Parquet": Target(
        (_parquet(question=["q?"], text=["one a"], answers=["a"]),),
        _refused_plainly(".parquet", lambda path: DatasetFile(str(path))),
    ),
}
