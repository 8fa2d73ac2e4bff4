"""What a stage learns from, where documents and rows are not as they should be."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.documents import DocumentWriter, current_documents
from infra.store.location import Corpus, Store
from infra.store.qa import read_qa, to_row, write_qa
from infra.store.schemas import QA, now
from memagent.errors import UsageError
from memagent.quality.curation import Qa
from memagent.records import TextSpan, text_hash
from memagent.rl.audit import audit
from pipelines.training.data import audited, splits
from pipelines.training.settings import prepare
from tests.support.texts import filler

QUESTION = "What is the pass number for amber-otter?"


@pytest.fixture
def archive(tmp_path, model_folder):
    """Twelve documents with a row each, every fourth of them for validation."""
    store, rows = Store(str(tmp_path / "store")), []
    remember(Corpus(store, "a"), sources=["/x"])
    writer = DocumentWriter(Corpus(store, "a"), "run", now())
    for i in range(12):
        text = f"{filler(random.Random(i), 60)}\n\nThe pass number for amber-otter is {1000 + i}."
        stands = {"doc_id": f"{i}.txt", "content_hash": text_hash(text), "state": "present"}
        about = {"title": "", "source": f"{i}.txt", "source_stamp": "", "first_seen": now(), "chars": len(text)}
        writer.document({**stands, **about}, text)
        rows.append(Qa(QUESTION, (f"{1000 + i}",), (text_hash(text),), (f"{i}.txt",), "gold"))
    writer.commit()
    keep(store, rows)
    return store


def keep(store, rows):
    """Write rows, every fourth document's for validation, whatever their hash says."""
    write_qa(Corpus(store, "a"), rows, "run")
    table = Table(store, "qa")
    side = {row.qa_id: "train" if int(row.documents[0].split(".")[0]) % 4 else "validation" for row in rows}
    table.upsert([{**row, "split": side[row["qa_id"]]} for row in table.read("a").to_pylist()])


def test_a_table_gains_a_column_that_its_schema_has_gained(tmp_path):
    store, row = Store(str(tmp_path)), Qa("q?", ("a",), ("h",), ("d",), "gold", evidence=(("h", 3),))
    earlier = QA.remove(QA.get_field_index("spans"))
    rows = pa.Table.from_pylist([to_row("a", row, "run", now())]).select(earlier.names).cast(earlier)
    write_deltalake(store.delta_uri("qa"), rows, partition_by=["corpus"])
    assert read_qa(store) == [row]
    later = replace(row, question="r?", spans=(TextSpan("h", 5, 9),))
    assert write_qa(Corpus(store, "a"), [row, later], "run").changed == 0
    assert sorted(read_qa(store), key=lambda row: row.question) == [row, later]


def delete(store, chosen):
    rows = current_documents(Corpus(store, "a")).to_pylist()
    writer = DocumentWriter(Corpus(store, "a"), "later", now())
    writer.delete([row for row in rows if int(row["doc_id"].split(".")[0]) in chosen])
    writer.commit()


def made(store):
    return splits(prepare("smoke", ["qa:a"], store=store.url))


def test_rows_whose_documents_are_gone_are_left_out_and_counted(archive):
    assert made(archive).gone == 0
    delete(archive, {0, 1, 2})
    found = made(archive)
    assert found.gone == 3
    gold = {found.train.task(i).gold for i in range(14)}
    assert gold == {(f"{1000 + i}",) for i in range(3, 12) if i % 4}
    assert {found.validation.task(i).gold for i in range(4)} == {("1004",), ("1008",)}


def test_harvested_rows_pass_the_audit_but_for_a_fifth_in_other_words(archive):
    """Every document is asked the same, as by a nightly digest."""
    run = prepare("smoke", ["qa:a"], store=archive.url)
    data = audited(run)
    report = audit((data.train, data.validation), run.recipe.reward.weights, 64)
    assert report.tasks == 128 and not report.violating and report.least_kinds >= 20
    rows = read_qa(archive, "a")
    train = [row for row in rows if int(row.documents[0].split(".")[0]) % 4]
    keep(archive, [replace(row, answers=("fifteen",)) if row == train[0] else row for row in rows])
    audited(run)
    keep(
        archive,
        [replace(row, answers=(f"fifteen and {row.documents[0]}",)) if row in train[:4] else row for row in rows],
    )
    with pytest.raises(UsageError, match=r"the answer is not in the text in \d+ of 128 tasks"):
        audited(run)


def test_data_that_cannot_teach_is_refused(archive):
    delete(archive, {i for i in range(12) if i % 4})
    with pytest.raises(UsageError, match="documents of all 9 harvested rows are gone: ingest them again"):
        made(archive)
    write_qa(Corpus(archive, "a"), [], "run")
    with pytest.raises(UsageError, match="there are no rows to train on"):
        made(archive)
    with pytest.raises(UsageError, match=r"no data set 'nothing'\. There are: qa"):
        splits(prepare("smoke", ["nothing"], store=archive.url))


def test_one_answer_for_all_is_refused(archive):
    keep(archive, [replace(row, answers=("7",)) for row in read_qa(archive, "a")])
    with pytest.raises(UsageError, match="have the same answer"):
        made(archive)


def test_without_validation_rows_there_is_no_training(archive):
    write_qa(Corpus(archive, "a"), read_qa(archive, "a", split="train"), "run")
    Table(archive, "qa").upsert([{**row, "split": "train"} for row in Table(archive, "qa").read("a").to_pylist()])
    with pytest.raises(UsageError, match="no harvested row is on the validation side"):
        made(archive)
