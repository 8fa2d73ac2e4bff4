"""What an ingest makes of sources that are new, changed, gone, moved or broken for a while."""

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.sources import discovery
from infra.sources.diff import IngestPlan, make_plan
from infra.store.buckets import Bucket, buckets
from infra.store.corpora import remember
from infra.store.data_files import FileCommits
from infra.store.delta import Table
from infra.store.documents import check_documents, current_documents, current_sources, document_texts, quarantined
from infra.store.location import Corpus, Store, file_system
from infra.store.runs import IngestSummary
from memagent.config import Config, IngestConfig
from memagent.errors import UsageError
from pipelines.stages.ingest import dismiss, ingest
from tests.support.waiting import wait_for


class Place:
    """A folder or a prefix of a bucket, with files that come and go."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs = file_system(url)

    def put(self, name: str, data: str | bytes) -> None:
        path = f"{self.url}/{name}".removeprefix("s3://")
        if not self.url.startswith("s3://"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fs.pipe_file(path, data.encode() if isinstance(data, str) else data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self.url}/{name}".removeprefix("s3://"))


class Run:
    """Ingests into one corpus, again and again."""

    def __init__(self, store: Store, **options: object) -> None:
        self.store = store
        self.config = Config(ingest=IngestConfig.model_validate(options))
        self.count = 0

    def __call__(self, *sources: str, **options: object) -> IngestSummary:
        self.count += 1
        config = Config(ingest=IngestConfig.model_validate(options)) if options else self.config
        return ingest(Corpus(self.store, "c"), list(sources), config, f"run-{self.count}")

    def texts(self) -> dict[str, str]:
        """Return the present documents' texts by id, in reading order."""
        rows = current_documents(Corpus(self.store, "c"), ["doc_id", "content_hash"]).to_pylist()
        texts = dict(document_texts(Corpus(self.store, "c"), [row["content_hash"] for row in rows]))
        return {row["doc_id"]: texts[row["content_hash"]] for row in rows}

    def bad(self) -> dict[str, str]:
        """Return what is in quarantine now: reason by item, without folders."""
        rows = quarantined(Corpus(self.store, "c")).to_pylist()
        return {row["item"].rsplit("/", 1)[-1]: row["reason"] for row in rows}


@pytest.fixture
def place(root: str) -> Place:
    return Place(f"{root}/in")


def test_new_changed_gone_and_renamed(store: Store, place: Place) -> None:
    run = Run(store)
    for name in "abcd":
        place.put(f"{name}.txt", f"text of {name}")
    first = run(place.url)
    assert (first["sources"], first["new"], first["documents"], first["chars"]) == (4, 4, 4, 36)
    again = run(place.url)
    assert (again["unchanged"], again["new"], again["documents"], again["bytes"]) == (4, 0, 0, 0)

    place.put("b.txt", "b has changed")
    place.remove("c.txt")
    place.remove("d.txt")
    place.put("0.txt", "text of d")  # d, renamed
    third = run(place.url)
    assert (third["new"], third["changed"], third["unchanged"], third["deleted"]) == (1, 1, 1, 2)
    assert third["documents"] == 2
    # b keeps its place in the archive's order, and what is new comes last
    assert list(run.texts().items()) == [("a.txt", "text of a"), ("b.txt", "b has changed"), ("0.txt", "text of d")]
    history = Table(store, "documents").read("c", ["doc_id", "state"]).to_pylist()
    assert sorted(row["state"] for row in history if row["doc_id"] == "c.txt") == ["deleted", "present"]

    place.put("c.txt", "text of c")
    back = run(place.url)
    assert (back["new"], back["documents"]) == (1, 1)
    assert list(run.texts()) == ["a.txt", "b.txt", "0.txt", "c.txt"]


def test_only_what_is_covered_can_be_gone(store: Store, place: Place) -> None:
    run = Run(store)
    place.put("a/1.txt", "one")
    place.put("a/1.md", "# Head\none")
    place.put("b/2.txt", "two")
    assert run(place.url)["new"] == 3
    place.remove("a/1.md")
    place.remove("b/2.txt")
    assert run(f"{place.url}/a/*.txt")["deleted"] == 0
    assert run(f"{place.url}/a")["deleted"] == 1
    assert run(f"{place.url}/**/*.txt")["deleted"] == 1
    assert run.texts() == {"a/1.txt": "one"}


def test_same_content_writes_no_document(store: Store, place: Place) -> None:
    run = Run(store)
    place.put("a.csv", "text\none\ntwo\n")
    assert run(place.url)["documents"] == 2
    place.put("a.csv", 'text\n"one"\n"two"\n')
    touched = run(place.url)
    assert (touched["changed"], touched["documents"]) == (1, 0)
    assert run(place.url)["unchanged"] == 1


def test_rows_come_and_go(store: Store, place: Place) -> None:
    run = Run(store, id_column="key")
    rows = [{"key": key, "text": f"text of {key}"} for key in "abc"]
    place.put("t.jsonl", "\n".join(map(json.dumps, rows)))
    assert run(place.url)["documents"] == 3
    rows = [{"key": "c", "text": "c has changed"}, {"key": "a", "text": "text of a"}, {"key": "d", "text": ""}]
    place.put("t.jsonl", "\n".join(map(json.dumps, rows)))
    changed = run(place.url)
    assert (changed["documents"], changed["empty"]) == (1, 1)
    assert run.texts() == {"t.jsonl#a": "text of a", "t.jsonl#c": "c has changed"}
    assert run.bad() == {}, "a row without text is no failure"
    assert run(place.url)["bytes"] == 0  # unchanged: it was not opened
    other = run(place.url, text_column="key")
    assert (other["changed"], other["documents"]) == (1, 3)
    assert run.bad() == {}


def test_a_broken_source_keeps_what_it_had(store: Store, place: Place) -> None:
    run = Run(store)
    lines = "\n".join(json.dumps({"text": f"line {i} {os.urandom(20).hex()}"}) for i in range(2000))
    whole = gzip.compress(lines.encode())
    place.put("t.jsonl.gz", whole)
    place.put("a.txt", b"\x00\x01\x02\x03" * 50)
    first = run(place.url)
    assert (first["new"], first["failed"], first["quarantined"]) == (1, 1, {"binary": 1})
    place.put("t.jsonl.gz", whole[: len(whole) // 2])
    cut = run(place.url)
    assert (cut["failed"], cut["quarantined"], cut["documents"]) == (2, {"binary": 1, "truncated": 1}, 0)
    again = run(place.url)
    assert [each["unread"] for each in (first, cut, again)] == [1, 2, 2]
    assert again["failed"] == 2
    assert len(run.texts()) == 2000
    assert run.bad() == {"a.txt": "binary", "t.jsonl.gz": "truncated"}
    assert {len(row["warnings"]) for row in current_documents(Corpus(store, "c")).to_pylist()} == {1}
    place.put("t.jsonl.gz", whole)
    place.put("a.txt", "fine now")
    assert run(place.url)["failed"] == 0
    assert run.bad() == {}
    assert not any(row["warnings"] for row in current_documents(Corpus(store, "c")).to_pylist())
    place.put("a.txt", "")
    emptied = run(place.url)
    assert (emptied["empty"], emptied["failed"], emptied["quarantined"], len(run.texts())) == (1, 0, {}, 2000)
    place.remove("a.txt")
    assert run(place.url)["deleted"] == 1
    assert run.bad() == {}
    assert len(run.texts()) == 2000


def test_what_holds_the_store_or_is_in_its_folders_is_refused(root: str) -> None:
    place, run = Place(root), Run(Store(f"{root}/store"))
    for name in ("docs", "store/documents", "store/papers", "store-2"):
        place.put(f"{name}/a.txt", "A text.")
    kinds = [f"**/*.{ending}" for ending in ("txt", "json", "jsonl", "gz", "md", "html", "parquet")]
    for source in ("", "**/*", "*/runs/**", "*/*/*", "st*/**/*.html", *kinds):
        with pytest.raises(UsageError, match="to be read as documents"):
            run(f"{root}/{source}")
    for source in ("documents", "documents/a.txt", "turns/c"):
        with pytest.raises(UsageError, match="has for itself"):
            run(f"{root}/store/{source}")
    for count, source in enumerate(("docs", "store/papers", "store-2"), 1):
        assert run(f"{root}/{source}")["documents"] == 1 and len(run.texts()) == count
    assert run(f"{root}/*/a.txt")["unchanged"] == 2


def test_what_a_link_that_leads_nowhere_gave_is_said_to_be_an_earlier_text(tmp_path: Path) -> None:
    run, docs = Run(Store(str(tmp_path / "store"))), tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("A text that was here.")
    run(str(docs))
    (docs / "a.txt").unlink()
    (docs / "a.txt").symlink_to(tmp_path / "nowhere")
    corpus = Corpus(run.store, "c")
    for _ in range(2):
        told = run(str(docs))
        assert (told["sources"], told["failed"], told["unread"]) == (1, 1, 1)
        (row,) = current_documents(corpus).to_pylist()
        assert row["warnings"] == ["its file could not be read again: this is an earlier text"]
    assert Table(run.store, "documents").read("c").num_rows == 3, "once: superseded, and with its warning"
    (docs / "a.txt").unlink()
    (docs / "a.txt").write_text("A text that was here.")
    assert run(str(docs))["failed"] == 0
    assert [row["warnings"] for row in current_documents(corpus).to_pylist()] == [None]


_MAILS = "".join(f"From a Mon Mar  4 10:00:00 2024\nFrom: a@example.org\nSubject: {n}\n\ntext {n}\n\n" for n in "012")


def _zip(*damaged: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for n in "012":
            archive.writestr(f"{n}.txt", b"\0\1\2\3" * 50 if n in damaged else f"text {n}")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "whole", "broken", "reason", "mended"),
    [
        ("t.csv", "id,text\n0,a\n1,b\n2,c\n", 'id,text\n0,a\n1,"b\n2,c\n', "broken-row", "id,text\n0,a\n2,c\n"),
        ("t.csv", "id,text\n0,a\n1,b\n2,c\n", "id,text\n0,a\n1\n2,c\n", "ragged", "id,text\n0,a\n2,c\n"),
        (
            "t.csv",
            f"id,text\n0,{'ä' * 20}\n1,b\n2,c\n",
            f"id,text\n0,{'ä' * 20}\n1,".encode() + b"\xff\n2,c\n",
            "encoding",
            f"id,text\n0,{'ä' * 20}\n2,c\n",
        ),
        (
            "t.jsonl",
            '{"id": 0, "text": "a"}\n{"id": 1, "text": "b"}\n{"id": 2, "text": "c"}\n',
            '{"id": 0, "text": "a"}\n{"id": 1, "text": 5}\n{"id": 2, "text": "c"}\n',
            "wrong-type",
            '{"id": 0, "text": "a"}\n{"id": 2, "text": "c"}\n',
        ),
        (
            "t.mbox",
            _MAILS,
            _MAILS.replace("From: a@example.org\nSubject: 1\n", "1\n"),
            "broken",
            _MAILS[: len(_MAILS) // 3 * 2],
        ),
        ("t.zip", _zip(), _zip("1"), "binary", _zip("1").replace(b"1.txt", b".1txt")),
    ],
)
def test_what_a_refused_row_was_stays_until_the_source_is_mended(
    tmp_path: Path, name: str, whole: str | bytes, broken: str | bytes, reason: str, mended: str | bytes
) -> None:
    run, place = Run(Store(str(tmp_path / "store")), id_column="id"), Place(str(tmp_path / "in"))
    place.put(name, whole)
    run(place.url)
    before = current_documents(Corpus(run.store, "c")).to_pylist()
    assert len(before) == 3
    place.put(name, broken)
    refused, again = run(place.url), run(place.url)
    assert refused["quarantined"] == again["quarantined"] == {reason: 1}, "it is a failure until it is mended"
    assert (refused["changed"], again["unchanged"]) == (1, 1)
    rows = current_documents(Corpus(run.store, "c")).to_pylist()
    assert len(rows) == 3 and rows[1]["content_hash"] == before[1]["content_hash"]
    assert [bool(row["warnings"]) for row in rows] == [False, True, False], "it may be no longer what it was"
    place.put(name, mended)
    run(place.url)
    assert len(run.texts()) == 2 and run.bad() == {}


def test_a_source_that_failed_is_parsed_again_only_where_something_has_changed(store: Store, place: Place) -> None:
    run = Run(store)
    place.put("a.txt", "fine")
    place.put("b.txt", b"\x00\x01\x02\x03" * 50)
    place.put("c.csv", "body\nno text\n")
    first = run(place.url)
    assert (first["new"], first["failed"], first["quarantined"]) == (1, 2, {"binary": 1, "no-column": 1})
    for _ in range(2):
        again = run(place.url)
        assert (again["unchanged"], again["failed"], again["quarantined"]) == (1, 2, {"binary": 1, "no-column": 1})
        assert again["sources"] == 3
        assert again["bytes"] == 0  # none was opened
        assert run.bad() == {"b.txt": "binary", "c.csv": "no-column"}

    forced = run(place.url, retry_failed=True)
    assert (forced["failed"], forced["bytes"]) == (2, 213)
    assert run(place.url)["bytes"] == 0
    other = run(place.url, text_column="body")  # how it is parsed has changed
    assert (other["new"] + other["changed"], other["failed"], other["bytes"]) == (1, 1, 213)
    assert run(place.url, text_column="body")["bytes"] == 0
    place.put("b.txt", "mended")
    mended = run(place.url, text_column="body")
    assert (mended["failed"], mended["bytes"], mended["quarantined"]) == (0, 6, {})
    assert run.bad() == {}


def test_a_source_that_was_dismissed_is_no_failure_until_it_changes(store: Store, place: Place) -> None:
    run, corpus = Run(store), Corpus(store, "c")
    place.put("a.txt", "fine")
    place.put("b.pdf", b"%PDF-1.7\nno more of it")
    place.put("t.jsonl", '{"text": "a row"}\n{"no text": 1}\n')
    assert run(place.url)["quarantined"].keys() and set(run.bad()) == {"b.pdf", "t.jsonl#2"}
    with pytest.raises(UsageError, match=r"a\.txt' has not failed"):
        dismiss(corpus, [f"{place.url}/a.txt"], run.config, "dismiss-0")
    dismiss(corpus, [f"{place.url}/b.pdf", f"{place.url}/t.jsonl#2"], run.config, "dismiss-1")
    assert run.bad() == {}
    for options in ({}, {"parse_seconds": 33.0}):  # other limits do not bring it back
        again = run(place.url, **options)
        assert (again["quarantined"], again["failed"], again["excluded"], again["deleted"]) == ({}, 0, 2, 0)
    assert len(run.texts()) == 2
    place.put("b.pdf", b"%PDF-1.7\nnot the rest of it either")
    back = run(place.url)
    assert (back["failed"], back["excluded"]) == (1, 1) and set(run.bad()) == {"b.pdf"}


def test_a_source_that_nobody_may_open_can_be_dismissed(tmp_path: Path) -> None:
    run, place = Run(Store(str(tmp_path / "store"))), Place(str(tmp_path / "in"))
    place.put("a.txt", "fine")
    os.symlink("/etc/hosts", tmp_path / "in" / "out.txt")
    assert run(place.url)["failed"] == 1
    dismiss(Corpus(run.store, "c"), [str(tmp_path / "in" / "out.txt")], run.config, "dismiss-1")
    again = run(place.url)
    assert (again["quarantined"], again["failed"], again["excluded"], run.bad()) == ({}, 0, 1, {})


def test_bad_rows_without_end_are_few_rows_in_quarantine(store: Store, place: Place) -> None:
    run = Run(store, max_refused=3)
    lines = ["good,1"] + ["one,two,three"] * 4000 + [",2"] * 1000 + ["last,3"]
    place.put("a.csv", "text,n\n" + "\n".join(lines))
    summary = run(place.url)
    assert (summary["documents"], summary["failed"]) == (2, 0)
    assert (summary["quarantined"], summary["empty"]) == ({"ragged": 4000}, 1000)
    assert run.bad() == {"a.csv#2": "ragged", "a.csv#3": "ragged", "a.csv#4": "ragged", "a.csv#": "more-rows"}
    (rest,) = [row for row in quarantined(Corpus(store, "c")).to_pylist() if row["reason"] == "more-rows"]
    assert "3,997 more rows" in rest["detail"] and "3,997 ragged" in rest["detail"]


def test_deleted_documents_can_be_kept(store: Store, place: Place) -> None:
    run = Run(store, keep_deleted=True)
    place.put("a.txt", "one")
    place.put("b.txt", "two")
    run(place.url)
    place.remove("a.txt")
    assert run(place.url)["deleted"] == 1
    assert run(place.url)["deleted"] == 0
    assert run.texts() == {"a.txt": "one", "b.txt": "two"}


def test_a_document_that_is_kept_keeps_its_id_and_goes_on_when_its_file_is_back(tmp_path: Path) -> None:
    run = Run(Store(str(tmp_path / "store")), keep_deleted=True)
    old, new = Place(f"{tmp_path}/a"), Place(f"{tmp_path}/b")
    for place in (old, new):
        place.put(f"{place.url[-1]}.txt", place.url[-1])
        place.put("x.txt", place.url[-1])
    run(old.url, new.url)
    for place in (old, new):
        place.remove("x.txt")
        run(old.url, new.url)
    Place(f"{tmp_path}/c").put("x.txt", "another")
    old.put("x.txt", "later")
    for _ in range(2):
        run(old.url, new.url, f"{tmp_path}/c")
        assert run.texts() == {"a.txt": "a", "b.txt": "b", "x.txt": "later", "b/x.txt": "b", "c/x.txt": "another"}
        rows = [row["doc_id"] for index in range(8) for row in _rows(run, Bucket(index, 8))]
        assert sorted(rows) == sorted(run.texts())


def test_names_that_meet_are_told_apart(store: Store, root: str) -> None:
    run = Run(store)
    for folder in ("x/in", "y/in", "z/in"):
        Place(f"{root}/{folder}").put("a.txt", f"in {folder}")
    run(f"{root}/x/in", f"{root}/y/in")
    assert run.texts() == {"a.txt": "in x/in", "in/a.txt": "in y/in"}
    before = run.texts()
    again = run(f"{root}/z/in", f"{root}/y/in", f"{root}/x/in")  # another order renames nothing
    assert (again["unchanged"], again["new"]) == (2, 1)
    after = run.texts()
    assert before.items() <= after.items()
    assert after["z/in/a.txt"] == "in z/in"


def test_a_folder_that_moves_keeps_its_documents(store: Store, tmp_path: Path) -> None:
    run = Run(store)
    Place(f"{tmp_path}/old").put("deep/a.txt", "one")
    Place(f"{tmp_path}/old").put("b.txt", "two")
    run(f"{tmp_path}/old")
    seen = current_documents(Corpus(store, "c"), ["doc_id", "first_seen"]).to_pylist()
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = run(f"{tmp_path}/new")
    assert (moved["new"], moved["deleted"]) == (2, 0)
    assert current_documents(Corpus(store, "c"), ["doc_id", "first_seen"]).to_pylist() == seen
    assert all("/new/" in source for source in current_documents(Corpus(store, "c"), ["source"])["source"].to_pylist())
    assert run(f"{tmp_path}/new")["unchanged"] == 2


def test_a_parser_that_hangs_is_a_row(store: Store, place: Place) -> None:
    run = Run(store)
    place.put("long.txt", "word " * 2_000_000)
    stuck = run(place.url, parse_seconds=0.0001)
    assert (stuck["failed"], stuck["quarantined"]) == (1, {"timeout": 1})
    assert run(place.url)["documents"] == 1
    assert run.bad() == {}


def test_a_file_that_goes_while_it_is_listed_is_a_row(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*arguments: Any) -> IngestPlan:
        made = make_plan(*arguments)
        place.remove("b.txt")
        return made

    run = Run(store)
    for name in "abc":
        place.put(f"{name}.txt", name)
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.stages.ingest.make_plan", plan)
        gone = run(place.url)
    assert (gone["new"], gone["failed"], gone["quarantined"]) == (2, 1, {"vanished": 1})
    assert run(place.url)["deleted"] == 1
    assert run.bad() == {}


def test_wrong_sources_are_refused_and_change_nothing(store: Store, root: str, tmp_path: Path) -> None:
    run = Run(store)
    for source in (f"{root}/nothing", f"{root}/*.txt", "ftp://a/b", f"{tmp_path}/no/*.txt"):
        with pytest.raises(UsageError, match="source"):
            run(source)
    if root.startswith("s3://"):
        with pytest.raises(UsageError, match=r"bucket|nothing under it"):
            run("s3://no-such-bucket-here/x")
    with pytest.raises(UsageError, match="no sources"):
        run()
    with pytest.raises(UsageError, match="corpus name"):
        ingest(Corpus(store, "../c"), [str(tmp_path)], Config(), "r")
    assert current_sources(Corpus(store, "c")).num_rows == 0


def test_an_unmounted_folder_is_no_deletion(store: Store, tmp_path: Path) -> None:
    run = Run(store)
    Place(f"{tmp_path}/disk").put("a.txt", "one")
    run(f"{tmp_path}/disk")
    shutil.rmtree(tmp_path / "disk")
    summary = run(f"{tmp_path}/disk")
    assert (summary["deleted"], summary["quarantined"], summary["unread"]) == (0, {"no-folder": 1}, 1)
    assert run.texts() == {"a.txt": "one"}
    (tmp_path / "disk" / "sub").mkdir(parents=True)  # its mount point
    summary = run(f"{tmp_path}/disk")
    assert (summary["deleted"], summary["quarantined"], summary["unread"]) == (0, {"empty-source": 1}, 0)
    assert run.texts() == {"a.txt": "one"}
    Place(f"{tmp_path}/disk").put("b.txt", "two")
    assert run(f"{tmp_path}/disk")["deleted"] == 1 and run.texts() == {"b.txt": "two"}
    with pytest.raises(UsageError, match="no such file or folder"):
        run(f"{tmp_path}/another")


def test_a_file_on_a_disk_that_is_not_mounted_is_no_deletion(store: Store, tmp_path: Path) -> None:
    run, disk = Run(store), Place(f"{tmp_path}/disk")
    disk.put("a.txt", "one")
    sources = (f"{tmp_path}/disk/a.txt", f"{tmp_path}/else")
    Place(sources[1]).put("c.txt", "three")
    run(*sources)
    remember(Corpus(store, "c"), sources=sources)
    disk.remove("a.txt")  # its mount point stays
    for _ in range(2):
        summary = run(*sources)
        assert (summary["deleted"], summary["quarantined"], summary["unread"]) == (0, {"no-folder": 1}, 1)
        assert run.texts() == {"a.txt": "one", "c.txt": "three"}
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    disk.put("b.txt", "two")
    summary = run(*sources)
    assert (summary["deleted"], summary["quarantined"]) == (1, {}) and run.texts() == {"c.txt": "three"}


@pytest.mark.parametrize("source", ["", "/b.txt", "/*.txt"])
def test_a_source_of_the_corpus_that_has_no_document_any_more_is_no_error(root: str, store: Store, source: str) -> None:
    """Its documents were deleted or moved to another source: nobody can take it out of the corpus."""
    run, old, new = Run(store), Place(f"{root}/old"), Place(f"{root}/new")
    old.put("b.txt", "two")
    sources = (f"{root}/old{source}", f"{root}/new")
    run(sources[0])
    remember(Corpus(store, "c"), sources=sources)
    old.remove("b.txt")
    new.put("b.txt", "two")
    assert run(*sources)["deleted"] == 0 and run.texts() == {"b.txt": "two"}
    if not root.startswith("s3://"):
        shutil.rmtree(f"{root}/old")
    for _ in range(3):
        again = run(*sources)
        assert (again["unchanged"], again["quarantined"], run.bad()) == (1, {}, {})
    with pytest.raises(UsageError, match="source"):
        run(f"{root}/other{source}", *sources)
    old.put("b.txt", "three")
    assert run(*sources)["new"] == 1


def test_a_bucket_that_is_gone_stops_no_other_source(tmp_path: Path, s3_bucket: str) -> None:
    run, place, fs = Run(Store(str(tmp_path / "store"))), Place("s3://gone-one-night/in"), file_system(s3_bucket)
    fs.mkdir("gone-one-night")
    place.put("a.txt", "one")
    Place(f"{tmp_path}/in").put("b.txt", "two")
    sources = ("s3://gone-one-night/in", f"{tmp_path}/in")
    run(*sources)
    remember(Corpus(run.store, "c"), sources=sources)
    place.remove("a.txt")
    fs.rmdir("gone-one-night")
    for _ in range(2):
        assert run(*sources)["quarantined"] == {"no-folder": 1} and run.texts() == {"a.txt": "one", "b.txt": "two"}


def test_a_bucket_that_cannot_be_listed_stops_no_other_source(
    tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, url = Run(Store(str(tmp_path / "store"))), f"{s3_bucket}/{tmp_path.name}/closed"
    Place(url).put("a.txt", "one")
    Place(f"{tmp_path}/in").put("b.txt", "two")
    run(url, f"{tmp_path}/in")

    def refused(*_: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(discovery, "probe", refused)
    summary = run(url, f"{tmp_path}/in")
    assert (summary["quarantined"], summary["unread"], summary["deleted"]) == ({"unreadable": 1}, 1, 0)
    assert run.texts() == {"a.txt": "one", "b.txt": "two"}
    with pytest.raises(UsageError, match="it cannot be listed: PermissionError: Access Denied"):
        run(f"{s3_bucket}/{tmp_path.name}/other")


@pytest.mark.parametrize("of_buckets", [1, 100_000])
@pytest.mark.parametrize("then", ["deleted", "mended"])
def test_a_source_that_moves_while_it_fails_takes_its_documents_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, of_buckets: int
) -> None:
    monkeypatch.setattr(buckets, "__defaults__", (of_buckets,))
    run, old, new = Run(Store(str(tmp_path / "store"))), Place(f"{tmp_path}/old"), Place(f"{tmp_path}/new")
    old.put("a.txt", "one")
    for place, name in ((old, "b.txt"), (new, "c.txt")):
        place.put(name, name)
    run(old.url, new.url)
    for place in (old, new):
        place.put("a.txt", b"\x00\x01\x02\x03" * 50)
        assert run(old.url, new.url)["failed"] == 1 and run.texts()["a.txt"] == "one"
        old.remove("a.txt") if place is old else None
    if then == "deleted":
        new.remove("a.txt")
    else:
        new.put("a.txt", "another")
    run(old.url, new.url)
    mine = [row["content_hash"] for bucket in buckets(3) for row in _rows(run, bucket) if row["doc_id"] == "a.txt"]
    assert len(mine) == (then == "mended") and run.texts().get("a.txt", "another") == "another"


def _rows(run: Run, bucket: Bucket) -> list[dict[str, str]]:
    return current_documents(Corpus(run.store, "c"), ["doc_id", "content_hash"], bucket).to_pylist()


@pytest.mark.parametrize("then", ["changes", "goes"])
def test_another_file_in_the_place_of_one_that_moved_leaves_that_alone(store: Store, root: str, then: str) -> None:
    run, inbox, archive = Run(store), Place(f"{root}/inbox"), Place(f"{root}/archive")
    inbox.put("report.txt", "of January")
    for place in (inbox, archive):
        place.put(f"{place.url[-3:]}.txt", place.url)
    run(inbox.url, archive.url)
    inbox.remove("report.txt")
    archive.put("report.txt", "of January")
    run(inbox.url, archive.url)
    inbox.put("report.txt", "of February")
    run(inbox.url, archive.url)
    if then == "changes":
        inbox.put("report.txt", "of February, corrected")
    else:
        inbox.remove("report.txt")
    run(inbox.url, archive.url)
    assert run.texts()["report.txt"] == "of January"
    assert len(run.texts()) == (4 if then == "changes" else 3)


def test_a_source_that_moved_survives_a_kill_before_the_end_of_the_ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, old, new = Run(Store(str(tmp_path / "store"))), Place(f"{tmp_path}/old"), Place(f"{tmp_path}/new")
    for place, name in ((old, "a.txt"), (old, "b.txt"), (new, "c.txt")):
        place.put(name, name)
    run(old.url, new.url)
    old.remove("a.txt")
    new.put("a.txt", "a.txt")
    run.config = Config(commit_seconds=0.01)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipelines.stages.ingest._delete", _killed)
        run(old.url, new.url)
    assert current_sources(Corpus(run.store, "c"), ["source"]).num_rows == 4, "it was committed before"
    run(old.url, new.url)
    assert run.texts() == {name: name for name in ("a.txt", "b.txt", "c.txt")}


def test_a_kill_between_two_commits_leaves_nothing_of_files_that_change_or_go_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place, commit = Run(Store(str(tmp_path / "store"))), Place(f"{tmp_path}/in"), FileCommits.commit
    for before in ({}, {"a.txt": "a"}):  # of a new corpus, and of one that grows
        for name, text in {
            **before,
            "edited.txt": "before",
            "gone.txt": "gone",
            "rows.csv": "text\none\ntwo\n",
        }.items():
            place.put(name, text)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(
                FileCommits, "commit", lambda self: _killed() if self._table.name == "sources" else commit(self)
            )
            run(place.url)
        assert "gone.txt" in run.texts(), "its document was committed"
        place.put("edited.txt", "after")
        place.put("rows.csv", "text\ntwo\n")
        place.remove("gone.txt")
        run(place.url)
        assert run.texts() == {**before, "edited.txt": "after", "rows.csv#1": "two"}
        assert run(place.url)["changed"] == 0
        for name in ("edited.txt", "rows.csv"):
            place.remove(name)
        place.put("a.txt", "a")
        run(place.url)


def _killed(*given: Any, **named: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("source", ["", "/*.txt", "/**/*.txt"])
def test_a_source_without_files_deletes_nothing(root: str, store: Store, source: str) -> None:
    """A folder, a prefix of a bucket, or a glob in one."""
    run, place = Run(store), Place(f"{root}/kept")
    place.put("a.txt", "one")
    place.put("b.txt", "two")
    asked = f"{root}/kept{source}"
    run(asked)
    place.remove("a.txt")
    assert run(asked)["deleted"] == 1 and run.texts() == {"b.txt": "two"}
    place.remove("b.txt")
    for _ in range(2):
        summary = run(asked)
        assert (summary["deleted"], summary["quarantined"]) == (0, {"empty-source": 1})
        assert run.texts() == {"b.txt": "two"}
    if not root.startswith("s3://"):
        os.symlink("nowhere", f"{root}/kept/link.txt")
        os.mkfifo(f"{root}/kept/pipe.txt")
        for _ in range(2):
            summary = run(asked)
            assert (summary["deleted"], summary["quarantined"].get("empty-source")) == (0, 1)
            assert run.texts() == {"b.txt": "two"}
        shutil.rmtree(f"{root}/kept")
        summary = run(asked)
        assert (summary["deleted"], run.texts()) == (0, {"b.txt": "two"})
        assert summary["quarantined"] == {"empty-source" if source else "no-folder": 1}
    place.put("c.txt", "three")
    assert run(asked)["deleted"] == 1 and run.texts() == {"c.txt": "three"}


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_table_without_the_id_column_is_refused_whole_and_what_it_gave_stays(
    store: Store, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    rows = [{"key": "a", "text": "one"}, {"key": "b", "text": "two"}]
    written = {
        "t.csv": lambda: (folder / name).write_text("key,text\na,one\nb,two\n"),
        "t.jsonl": lambda: (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows)),
        "t.parquet": lambda: pq.write_table(pa.Table.from_pylist(rows), folder / name),
    }
    written[name]()
    run = Run(store, id_column="key")
    run(str(folder))
    wrong = run(str(folder), id_column="nope")
    assert wrong["quarantined"] == {"no-column": 1} and wrong["failed"] == 1
    assert run.texts() == {f"{name}#a": "one", f"{name}#b": "two"}


def test_a_folder_that_never_had_a_file_is_not_said_to_have_none_any_more(tmp_path: Path) -> None:
    run = Run(Store(str(tmp_path / "store")))
    (tmp_path / "in").mkdir()
    os.symlink("nowhere", tmp_path / "in" / "link.txt")
    for source in ("", "", "/*.txt", "/*.txt"):
        assert run(f"{tmp_path}/in{source}")["quarantined"] == {"link": 1}


_KILLED = """
import sys
from infra.store.location import Corpus, Store
from memagent.config import Config
from pipelines.stages.ingest import ingest
ingest(Corpus(Store(sys.argv[1]), "c"), [sys.argv[2]], Config(commit_seconds=0.01), "run-0")
"""


def test_killed_and_started_again_it_goes_on(store: Store, place: Place) -> None:
    many = 400
    texts = {f"{i:03d}.txt": f"document {i} " * 10 for i in range(many)}
    for name, text in texts.items():
        place.put(name, text)
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, store.url, place.url],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        start_new_session=True,
    )
    wait_for(lambda: current_sources(Corpus(store, "c")).num_rows >= 5, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(_runs, workers)))  # they end with it; till then they go on committing
    done = current_sources(Corpus(store, "c")).num_rows
    assert 5 <= done < many
    run = Run(store)
    rest = run(place.url)
    # sources whose documents alone were committed are known, but not as they are: they count as changed
    assert (rest["unchanged"], rest["new"] + rest["changed"]) == (done, many - done)
    assert run.texts() == texts
    # at most the commit that was cut off is written twice
    assert Table(store, "documents").read("c", ["doc_id"]).num_rows <= many + 122


def _runs(process: psutil.Process) -> bool:
    """Whether it does: one that has ended stays a zombie where nobody waits for it, as in some containers."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_sources_without_text_are_named_and_a_corpus_of_such_says_why_it_has_no_documents(tmp_path, caplog):
    run, place = Run(Store(str(tmp_path / "store"))), Place(str(tmp_path / "in"))
    for n in range(7):
        place.put(f"{n}.txt", " ")
    assert run(place.url)["empty"] == 7
    assert "7 sources without text: " in caplog.text and "4.txt and 2 more" in caplog.text
    with pytest.raises(UsageError, match=r"sources without text: 7$"):
        check_documents(Corpus(run.store, "c"))
    place.put("b.pdf", b"%PDF-1.7")
    run(place.url)
    with pytest.raises(UsageError, match=r"without text: 7; sources that could not be read: 1 \(memagent quarantine c"):
        check_documents(Corpus(run.store, "c"))
