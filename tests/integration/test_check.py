"""Something of a store was lost or overwritten: a check says what, and after a repair the next night puts it back."""

import io
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.documents import current_documents
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.schemas import POLICIES_OF, now
from memagent.config import load_config
from memagent.errors import MemagentError
from pipelines.ask import ask, digest
from pipelines.io.answers import answer_table
from pipelines.operate.check import check
from pipelines.operate.forget import forget
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive

DOCUMENTS = 6


class Archive:
    def __init__(self, url, model, folder):
        self.folder = folder
        self.config = load_config(
            store=url, engine__kind="scripted", engine__model=str(model), sets=["flush_seconds=0.2"]
        )
        self.store = Store(url)
        write_archive(folder, count=DOCUMENTS, words=80)

    def night(self, question=OTTER):
        taken = ingest(Corpus(self.store, "c"), [str(self.folder)], self.config, "ingest")
        return taken, ask("c", [question], self.config)

    def answers(self, run):
        return {row["document"]: row["answer"] for row in answer_table(self.config, "c", run)}

    def check(self, **options):
        return check("c", self.config, **options)

    def files(self, folder, suffix=".parquet"):
        return [path for path in self.store.list(folder, suffix=suffix) if "_delta_log" not in path]


@pytest.fixture
def archive(store, tmp_path, model_folder):
    return Archive(store.url, model_folder, tmp_path / "docs")


def test_what_is_whole_is_left_alone(archive):
    _, asked = archive.night()
    checked = archive.check(repair=True)
    assert checked["found"] == {} and checked["lasting"] == 0
    counts = checked["checked"]
    assert (counts["texts"], counts["answers"], counts["segmented"]) == (DOCUMENTS, DOCUMENTS, DOCUMENTS)
    taken, again = archive.night()
    assert taken["unchanged"] == DOCUMENTS and again["conversations"] == 0
    assert archive.answers(again["run_id"]) == archive.answers(asked["run_id"])


def garbage(store, path):
    store.write_bytes(b"PAR1 this was a table once PAR1", path.removeprefix(store.path("")))


def cut(store, path):
    data = store.fs.cat_file(path)
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    column = max((group.column(i) for i in range(group.num_columns)), key=lambda one: one.total_compressed_size)
    # Its last values: what comes before, as the statistics of a page or the footer, nobody may ever need.
    at = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 20
    store.write_bytes(data[:at] + bytes(20) + data[at + 20 :], path.removeprefix(store.path("")))


@pytest.mark.parametrize("harm", [garbage, cut, lambda store, path: store.delete(path)], ids=["garbage", "cut", "gone"])
@pytest.mark.parametrize("folder", ["documents", "texts", "sources", "segmented", "segments", "answers", "turns"])
def test_what_was_damaged_is_found_and_comes_back(archive, folder, harm):
    _, asked = archive.night()
    expected = archive.answers(asked["run_id"])
    for path in archive.files(folder):
        harm(archive.store, path)
    seen = archive.check()
    if folder == "turns" and not archive.files("turns"):
        assert seen["found"] == {"answers": DOCUMENTS}, "the answers stand, and how they came about is lost"
        return
    assert seen["found"] and seen["lasting"] == sum(seen["found"].values())
    repaired = archive.check(repair=True)
    assert all(damage["repair"] for damage in repaired["damages"] if damage["part"] != "answers")
    taken, again = archive.night()
    assert taken["failed"] == 0 and again["readings"]["failed"] == 0
    assert archive.answers(again["run_id"]) == expected
    left = archive.check()
    assert left["found"] == ({"answers": DOCUMENTS} if folder == "turns" else {})
    if folder not in ("turns", "answers"):
        assert again["conversations"] == 0, "what is answered stays answered"
    if harm is garbage:
        assert archive.store.list("damaged", suffix=""), "nothing is deleted"


def test_a_digest_reads_again_the_answers_that_a_repair_dropped(archive):
    ingest(Corpus(archive.store, "c"), [str(archive.folder)], archive.config, "ingest")
    first = digest("c", [OTTER, HERON], archive.config)
    assert digest("c", None, archive.config)["conversations"] == 0
    garbage(archive.store, archive.files("answers")[0])
    assert archive.check(repair=True)["found"].keys() >= {"tables"}
    again = digest("c", None, archive.config)
    assert again["readings"]["read_now"] > 0 or again["readings"]["continued"] > 0
    assert again["rollup"] and len(archive.answers(again["run_id"])) == len(archive.answers(first["run_id"]))
    assert Table(archive.store, "answers").read("c").num_rows == 2 * DOCUMENTS
    assert digest("c", None, archive.config)["readings"]["read_now"] == 0


def test_an_emptied_commit_of_answers_is_damage_and_the_answers_come_back(archive):
    ingest(Corpus(archive.store, "c"), [str(archive.folder)], archive.config, "ingest")
    first = digest("c", [OTTER], archive.config)
    expected = archive.answers(first["run_id"])
    (last,) = archive.store.list("answers/_delta_log", suffix=".json")[-1:]
    archive.store.write_bytes(b"", last.removeprefix(archive.store.path("")))
    seen = archive.check()
    assert seen["found"] == {"tables": 1} and seen["lasting"] == 1
    assert archive.check(repair=True)["found"]["tables"] == 1 and archive.check()["found"] == {}
    assert archive.answers(digest("c", None, archive.config)["run_id"]) == expected
    for path in archive.store.list("answers/_delta_log", suffix=""):
        archive.store.delete(path)
    lost = archive.check(repair=True)
    assert lost["lasting"] == 1 and "backup" in lost["damages"][0]["detail"]


def bound(column, digits):
    """Return what changes the first letters of a bound of a column in the statistics of a file."""
    return lambda line: re.sub(rf'(Values\\": ?{{[^}}]*{column}\\": ?\\")..', rf"\g<1>{digits}", line)


MISSTATED = {
    "corpus": lambda line: line.replace('"partitionValues":{"corpus":"c"}', '"partitionValues":{"corpus":"b"}'),
    "rows": lambda line: re.sub(r'(numRecords\\": ?)\d+', r"\g<1>0", line),
    "bytes": lambda line: re.sub(r'"size":\d+', '"size":7', line),
    "content_hash": bound("content_hash", "zz"),
    "reading_id": bound("reading_id", "zz"),
    "answered_at": bound("answered_at", "24"),
    "answer": lambda line: re.sub(r'(nullCount\\":.*\\"answer\\": ?)0', r"\g<1>3", line),
}


@pytest.mark.parametrize(
    ("name", "harm"),
    [("answers", harm) for harm in MISSTATED] + [("documents", "rows"), ("feedback", "corpus"), ("feedback", "bytes")],
)
def test_what_the_log_says_wrongly_of_a_file_is_corrected_by_the_file(archive, name, harm):
    store = archive.store
    remember(Corpus(store, "c"), sources=[str(archive.folder)])
    _, asked = archive.night()
    Table(store, "feedback").append([{"corpus": "c", "reading_id": "r", "verdict": "accepted", "given_at": now()}])
    expected, rows = archive.answers(asked["run_id"]), {each: sorted_rows(store, each) for each in ("feedback", name)}
    added = [path for path in store.list(f"{name}/_delta_log", suffix=".json") if b'{"add"' in store.fs.cat_file(path)]
    before = store.fs.cat_file(added[-1]).decode()
    after = MISSTATED[harm](before)
    assert after != before
    store.write_bytes(after.encode(), added[-1].removeprefix(store.path("")))
    seen = archive.check()
    assert seen["found"] == {"tables": after.count('{"add"')} and harm in seen["damages"][0]["detail"]
    assert archive.check(repair=True)["lasting"] == 0
    assert {each: sorted_rows(store, each) for each in rows} == rows
    assert Table(store, name).count("c") == len(rows[name])
    assert archive.answers(asked["run_id"]) == expected
    assert archive.check()["found"] == {} and archive.night()[1]["conversations"] == 0


@pytest.mark.parametrize("harm", ["path", "remove"])
def test_what_was_deleted_does_not_come_back_by_a_repair(archive, harm):
    archive.night()
    store, table = archive.store, Table(archive.store, "feedback")
    rows = [{"corpus": "c", "reading_id": name, "verdict": "accepted", "given_at": now()} for name in ("kept", "gone")]
    table.append(rows)
    table.delete("c", reading_id=["gone"])
    first, second = store.list("feedback/_delta_log", suffix=".json")
    if harm == "path":
        data = re.sub(rb'("add":{"path":"corpus=c/part-\d+-).', rb"\g<1>z", store.fs.cat_file(first))
        store.write_bytes(data, first.removeprefix(store.path("")))
    else:
        data = store.fs.cat_file(second).replace(b'"dataChange":true', b'"dataChange":tsue')
        store.write_bytes(data, second.removeprefix(store.path("")))
    assert archive.check()["found"]["tables"]
    assert archive.check(repair=True)["lasting"] == 0 and archive.check()["found"] == {}
    assert [row["reading_id"] for row in table.read("c").to_pylist()] == ["kept"]


def test_an_outage_is_no_damage(archive, monkeypatch):
    archive.night()
    for error in (OSError(24, "Too many open files"), OSError("AWS Error SLOW_DOWN"), pa.ArrowMemoryError("memory")):
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr("infra.maintenance.integrity.pq.ParquetFile", lambda *_, error=error, **__: _raise(error))
            archive.check(repair=True)
    assert not archive.store.list("damaged", suffix="")


def _raise(error):
    raise error


def test_rows_of_no_corpus_are_checked_with_any_and_keep_their_place(archive):
    archive.night()
    policies = Table(archive.store, "policies")
    policies.append({"corpus": POLICIES_OF, "policy_id": f"p@{each}", "path": "policies/p"} for each in (1, 2))
    (log,) = archive.store.list("policies/_delta_log", suffix=".json")
    whole = archive.store.fs.cat_file(log)
    archive.store.write_bytes(whole.replace(b"dataChange", b"dataChangf"), log.removeprefix(archive.store.path("")))
    assert archive.check(repair=True)["found"]["tables"] == 1
    assert policies.read(POLICIES_OF).num_rows == 2 and archive.check()["found"].keys() == {"policies"}
    (path,) = archive.files("policies")
    garbage(archive.store, path)
    assert archive.check(repair=True)["damages"][0]["repair"].endswith("nothing makes its rows again")
    assert archive.check()["found"] == {} and policies.read(POLICIES_OF).num_rows == 0


def test_a_damaged_plan_is_set_aside_and_hinders_no_forgetting(archive):
    _, asked = archive.night()
    plan = Corpus(archive.store, "c"), asked["run_id"]
    (path,) = archive.store.list("runs", asked["run_id"], "plan")
    cut(archive.store, path)
    with pytest.raises(MemagentError, match=f"a file of the plan of run {asked['run_id']} .* is damaged"):
        read_plan(*plan)
    assert archive.check()["found"] == {"plans": 1}
    document = current_documents(plan[0]).to_pylist()[0]
    assert forget("c", archive.config, [("doc_id", document["doc_id"])])["documents"]
    assert not archive.store.list("runs", asked["run_id"], "plan"), "what nobody can read does not stay"
    _, asked = archive.night(HERON)
    (path,) = archive.store.list("runs", asked["run_id"], "plan")
    garbage(archive.store, path)
    assert archive.check(repair=True)["found"] == {"plans": 1} and archive.check()["found"] == {}
    for _ in range(2):
        _, asked = archive.night()  # has no plan to compare with, and makes one
        assert archive.store.list("runs", asked["run_id"], "plan") or archive.store.exists(
            "runs", asked["run_id"], "plan.json"
        )
        assert read_plan(Corpus(archive.store, "c"), asked["run_id"]).num_rows


def test_a_conversation_that_is_not_in_the_turn_log_is_missed(archive):
    archive.night()
    (path, *_) = archive.files("turns")
    turns = archive.store.read_part(path.removeprefix(archive.store.path("")))
    reading = turns["reading_id"][0].as_py()
    archive.store.write_part(turns.slice(1), path.removeprefix(archive.store.path("")))
    (damage,) = archive.check()["damages"]
    assert (damage["part"], damage["item"]) == ("answers", reading) and damage["detail"].startswith("1 of its ")


def test_damaged_settings_are_found(archive):
    archive.night()
    remember(Corpus(archive.store, "c"), sources=["/a"])
    archive.store.write_bytes(b'{"sourcds": ["/a"]}', "corpora", "c.json")
    checked = archive.check()
    assert checked["found"] == {"settings": 1} and "restore it from a backup" in checked["damages"][0]["detail"]


def sorted_rows(store, name):
    return sorted(map(str, Table(store, name).read("c").to_pylist()))


@pytest.mark.parametrize("name", ["documents", "answers", "runs"])
def test_a_file_that_is_cut_off_names_its_cure(archive, name):
    archive.night()
    for path in archive.files(name):
        if path.startswith(archive.store.path(name, "corpus=")):
            archive.store.write_bytes(archive.store.fs.cat_file(path)[:500], path.removeprefix(archive.store.path("")))
    with pytest.raises(MemagentError, match=f"a file of table {name} .* memagent check CORPUS"):
        archive.night(HERON)
    assert archive.check()["found"] and archive.check(repair=True)["found"]
    _, again = archive.night()
    assert again["readings"]["failed"] == 0


def test_a_text_that_is_another_one_than_its_hash_says_is_taken_again(archive):
    archive.night()
    texts = Table(archive.store, "texts")
    row = texts.read("c").to_pylist()[0]
    texts.delete("c", content_hash=[row["content_hash"]])
    texts.append([{**row, "text": "somebody else's words"}])
    assert archive.check()["found"] == {"texts": 1}
    archive.check(repair=True)
    taken, _ = archive.night()
    assert taken["documents"] == 1
    assert archive.check()["found"] == {}
    assert current_documents(Corpus(archive.store, "c")).num_rows == DOCUMENTS


def test_an_archive_is_in_the_order_of_before_after_a_text_was_lost(archive):
    archive.night()
    before = ask("c", [HERON], archive.config, archive=True)
    first = current_documents(Corpus(archive.store, "c"), ["content_hash"])["content_hash"][0].as_py()
    Table(archive.store, "texts").delete("c", content_hash=[first])
    archive.check(repair=True)
    archive.night()
    again = ask("c", [HERON], archive.config, archive=True)
    assert (before["readings"]["read_now"], again["readings"]["read_now"]) == (1, 0)


def test_garbage_in_the_turn_log_names_its_cure(archive):
    archive.night()
    archive.store.write_bytes(b"no part", "turns", "c", "some-run", "part.parquet")
    with pytest.raises(MemagentError, match="memagent check c --repair"):
        archive.night(HERON)
    archive.check(repair=True)
    _, asked = archive.night()
    assert asked["readings"]["failed"] == 0
