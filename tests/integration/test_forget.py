"""What is forgotten is in no file of the store any more, and does not come back; the rest stays as it was."""

import gzip
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from infra.maintenance.lineage import find_texts
from infra.store.corpora import corpora, remember
from infra.store.delta import Table
from infra.store.documents import current_documents, document_texts
from infra.store.location import Corpus, Store, file_system
from infra.store.qa import write_qa
from infra.store.runs import write_run
from infra.store.schemas import now
from memagent.config import load_config
from memagent.errors import MemagentError, UsageError
from memagent.evaluation.controls import CONTROLS
from memagent.evaluation.ruler import write_jsonl
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import Sample, Whole
from memagent.quality.curation import Qa
from memagent.rl.reward import Reward
from memagent.rl.trajectory import Conversation, Group, Trajectory
from pipelines.ask import ask, digest
from pipelines.evaluate import evaluate
from pipelines.io.answers import answer_table
from pipelines.operate.check import check
from pipelines.operate.dry_run import ask_dry_run
from pipelines.operate.forget import forget
from pipelines.operate.optimize import optimize
from pipelines.report.page import write_to_store
from pipelines.stages.ingest import ingest
from pipelines.target import Target
from pipelines.training.checkpoints import Checkpoints
from tests.support.archives import HERON, OTTER, write_archive

CANARY = "The violet canary of Mrs Ogilvie sings at number seven"


def test_a_forgotten_document_is_in_no_file_and_does_not_come_back(store, tmp_path, model_folder):
    folder = tmp_path / "docs"
    write_archive(folder, count=5, words=80)
    secret = folder / "ogilvie.txt"
    secret.write_text(f"The pass number for amber-otter is 47110815.\n\n{CANARY}.\n\n{CANARY}.")
    sets = ["flush_seconds=0.2"]
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    corpus = Corpus(store, "c")
    ingest(corpus, [str(folder)], config, "first")
    secret.write_text(secret.read_text() + "\n\nA second version.")
    ingest(corpus, [str(folder)], config, "second")
    night = digest("c", [OTTER], config)
    archive = ask("c", [HERON], config, archive=True)
    for run in (night, archive):
        write_to_store(store, run["run_id"])
    rows = answer_table(config, "c", night["run_id"])
    (mine,) = [row for row in rows if row["document"].endswith("ogilvie.txt")]
    assert mine["answer"] == "47110815"
    Table(store, "feedback").append(
        [
            {
                "corpus": "c",
                "reading_id": mine["reading_id"],
                "verdict": "accepted",
                "answer": "47110815",
                "given_at": now(),
            }
        ]
    )
    stream = tuple(
        row["content_hash"]
        for row in Table(store, "answers").read("c", ["reading_id", "content_hash"]).to_pylist()
        if row["reading_id"] == mine["reading_id"]
    )
    write_qa(corpus, [Qa(OTTER.text, ("47110815",), stream, documents=("ogilvie.txt",), source="gold")], "harvest")
    assert {file.split("/")[0] for file, _ in find_texts(store, [CANARY])} >= {"texts", "segments"}

    would = forget("c", config, [("doc_id", "ogilvie*")], dry=True)
    assert (would["documents_count"], would["texts"], would["readings"], would["training_rows"]) == (1, 2, 2, 1)
    assert list(find_texts(store, [CANARY])), "a dry run changes nothing"
    done = forget("c", config, [("doc_id", "ogilvie*")], canaries=[CANARY, "47110815", "ogilvie"])
    assert done["searched"] > 3
    assert [hit for hit in done["found"] if not hit["file"].startswith("corpora/")] == []

    assert check("c", config)["found"] == {}
    dry = ask_dry_run(Target(corpus, (str(folder),)), [OTTER], config)
    assert (dry["documents"], dry["readings_to_read"]) == (5, 0), "no one is told that it would be read again"
    again = ingest(corpus, [str(folder)], config, "third")
    assert (again["quarantined"], again["excluded"], again["failed"]) == ({}, 1, 0), "it still lies there: no failure"
    assert again["new"] + again["changed"] + again["unchanged"] + 1 == again["sources"]
    assert ingest(corpus, [str(folder)], config, "fourth")["excluded"] == 1, "and it is so the next time"
    assert not list(find_texts(store, [CANARY, "47110815"]))
    left = digest("c", [OTTER], config)
    assert left["readings"]["total"] == 5 and left["conversations"] == 0, "the others are read and answered"
    kept = {row["document"]: row["answer"] for row in rows if row is not mine}
    assert {row["document"]: row["answer"] for row in answer_table(config, "c", left["run_id"])} == kept


@pytest.mark.parametrize("then", ["goes", "loses a row"])
def test_rows_that_stay_are_known_to_be_of_their_file(tmp_path, model_folder, then):
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    config = load_config(store=store.url, sets=["ingest.id_column='id'"])
    write_archive(folder, count=1)
    rows = [json.dumps({"id": name, "text": f"{name} has a text of its own"}) for name in ("ogilvie", "heron", "otter")]
    (folder / "t.jsonl").write_text("\n".join(rows))
    corpus = Corpus(store, "c")
    ingest(corpus, [str(folder)], config, "first")
    forget("c", config, [("doc_id", "*#ogilvie")])
    if then == "goes":
        (folder / "t.jsonl").unlink()
    else:
        (folder / "t.jsonl").write_text("\n".join(rows[:2]))
    summary = ingest(corpus, [str(folder)], config, "second")
    left = current_documents(corpus, ["doc_id"])["doc_id"].to_pylist()
    assert left == (["doc0.txt"] if then == "goes" else ["doc0.txt", "t.jsonl#heron"])
    assert (summary["deleted"], summary["excluded"], summary["new"]) == ((1, 0, 0) if then == "goes" else (0, 1, 0))


def test_a_file_in_the_place_of_a_forgotten_one_that_had_moved_stays_one_document(tmp_path):
    inbox, archive, store = tmp_path / "inbox", tmp_path / "archive", Store(str(tmp_path / "store"))
    config, corpus = load_config(store=store.url), Corpus(store, "c")
    inbox.mkdir()
    for name in ("report.txt", "other.txt"):
        (inbox / name).write_text(f"{name} of January")
    write_archive(archive, count=1)
    sources = [str(inbox), str(archive)]
    ingest(corpus, sources, config, "first")
    (inbox / "report.txt").rename(archive / "report.txt")
    ingest(corpus, sources, config, "second")
    (inbox / "report.txt").write_text("the report of February")
    ingest(corpus, sources, config, "third")
    forget("c", config, [("doc_id", "report.txt")])
    again = ingest(corpus, sources, config, "fourth")
    assert (again["new"], again["changed"], again["excluded"]) == (0, 1, 1)
    left = current_documents(corpus, ["doc_id"])["doc_id"].to_pylist()
    assert sorted(left) == ["doc0.txt", "inbox/report.txt", "other.txt"] and check("c", config)["found"] == {}


STEPS = ("forgotten", "erase_rows", "erase_from_part", "forget_rollups", "_delete_copies", "find_texts")


@pytest.mark.parametrize("step", STEPS)
def test_a_forgetting_that_was_killed_is_finished_by_the_next_one(tmp_path, model_folder, monkeypatch, step):
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    write_archive(folder, count=3, words=80)
    (folder / "ogilvie.txt").write_text(f"The pass number for amber-otter is 47110815.\n\n{CANARY}.\n\n{CANARY}.")
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    digest("c", [OTTER], config)
    home = "pipelines.operate.forget" if step == "find_texts" else "infra.maintenance.erasure"
    whole, calls = getattr(sys.modules[home], step), []

    def killed(*given, **named):
        calls.append(given)
        if len(calls) > 1 or step not in ("erase_rows", "erase_from_part"):
            raise KeyboardInterrupt
        return whole(*given, **named)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"{home}.{step}", killed)
        forget("c", config, [("title", "ogilvie*")])
    assert check("c", config)["found"]["forgettings"] == 1
    done = forget("c", config, [("title", "ogilvie*")], canaries=[CANARY, "47110815"])
    assert (done["documents"], done["texts"], done["readings"], done["found"]) == (["ogilvie.txt"], 1, 1, [])
    assert done["searched"] > 2 and not store.exists("forgetting.json")
    assert check("c", config)["found"] == {}
    with pytest.raises(UsageError, match="no document of c matches"):
        forget("c", config, [("title", "ogilvie*")])
    (folder / "ogilvie.txt").unlink()
    again = digest("c", [OTTER], config)
    assert (again["readings"]["total"], again["readings"]["failed"]) == (3, 0), "the others are whole"


def test_an_interrupted_forgetting_of_another_corpus_is_finished_too(tmp_path, model_folder, monkeypatch):
    store = Store(str(tmp_path / "store"))
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    for name in ("c", "d"):
        folder = tmp_path / name
        write_archive(folder, count=2, words=30)
        (folder / "mine.txt").write_text(f"{CANARY} of {name}, {name}, {name}, {name} and nobody else.")
        ingest(Corpus(store, name), [str(folder)], config, f"of-{name}")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="no room"):
        patched.setattr("infra.maintenance.erasure._erase_from_runs", raising(OSError("no room")))
        forget("c", config, [("doc_id", "mine.txt")])
    done = forget("d", config, [("doc_id", "mine.txt")], canaries=[CANARY])
    assert (done["corpus"], done["documents_count"], done["found"]) == ("d", 1, [])
    assert not store.exists("forgetting.json")


def raising(error):
    def call(*given, **named):
        raise error

    return call


def test_copies_for_evaluations_and_trainings_go_as_well(store, tmp_path, model_folder, monkeypatch):
    folder = tmp_path / "docs"
    write_archive(folder, count=3, words=80)
    text = f"The pass number for amber-otter is 47110815.\n\n{CANARY}."
    (folder / "ogilvie.txt").write_text(text)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    corpus = Corpus(store, "c")
    ingest(corpus, [str(folder)], config, "first")
    other = next(one for one in current_documents(corpus).to_pylist() if one["doc_id"] != "ogilvie.txt")
    (of_other,) = [said for _, said in document_texts(corpus, [other["content_hash"]])]
    monkeypatch.setattr(
        "pipelines.operate.forget._SEARCHED", 1
    )  # what is erased does not depend on what is searched for
    samples = [
        Sample(name, "questions", 0, pieces=Whole(said), question=OTTER.text, answers=(gold,), match="f1")
        for name, said, gold in (
            ("c/1", text, "47110815"),
            ("c/2", f"Before.\n\n{text}", "47110815"),
            ("c/3", of_other, "8"),
        )
    ]
    questions = Path(tmp_path / "promotion.jsonl")
    write_jsonl(samples, questions)
    store.put_file(questions, "promotions", "0123456789ab", "promotion.jsonl")
    scored = evaluate(Suite("files", data=(str(questions),)), config)
    write_run(store, {**scored, "corpus": "c", "kind": "harvest", "run_id": "harvest"}, now(), {})
    trainings = {"qa-0123-0": (["qa"], []), "needles-7": (["needles"], []), "needles-8": (["needles"], ["c"])}
    for name, (data, texts) in trainings.items():
        kept = name == "needles-7"
        store.write_bytes(json.dumps({"data": data, "text": texts}).encode(), "training", name, "named.json")
        trajectory = Trajectory(name, 0, (Conversation([1, 2], [3], [-0.5], "answer"),), Reward(1.0, 1.0, 1.0))
        Checkpoints(store, name).record(1, [Group(name, (trajectory,))], 1)
        assert store.exists("training", name, "rollouts", "step-000001.jsonl.gz"), kept

    done = forget("c", config, [("doc_id", "ogilvie.txt")], canaries=[CANARY, "47110815"])
    assert (done["evaluated"], done["documents_count"], done["readings"]) == ([scored["corpus"]], 1, 2)
    assert corpora(store) == ["c"], "an evaluation is no corpus of its own by that"
    assert done["found"] == []
    left = current_documents(Corpus(store, scored["corpus"])).to_pylist()
    assert [row["content_hash"] for row in left] == [other["content_hash"]], "texts of other documents stay"
    assert not store.list("promotions", suffix="")
    assert [path.split("/")[-3] for path in store.list("training", suffix=".gz")] == ["needles-7"]


def write_own(path, *rows):
    """Write an evaluation file as `memagent qa export --format own` does: (texts, gold) each."""
    lines = [json.dumps({"question": OTTER.text, "documents": texts, "answers": [gold]}) for texts, gold in rows]
    path.write_text("\n".join(lines))
    return Suite("files", data=(str(path),))


SECRET = f"47110815 is the pass number for amber-otter. {CANARY}, 47110815 times a day, and it never sings of 47110815."


@pytest.mark.parametrize("control", CONTROLS)
def test_copies_go_though_a_control_changed_them(tmp_path, model_folder, control):
    """Also those of texts too short to be told by their words; texts of other documents stay."""
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    write_archive(folder, count=3, words=80)
    (folder / "ogilvie.txt").write_text(SECRET)
    (folder / "ogilvie2.txt").write_text("Ogilvie 47110815.")
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    kept = [(folder / f"doc{i}.txt").read_text() for i in (0, 2)]
    rows = [([kept[0]], "1000"), ([kept[1]], "1002"), ([SECRET], "47110815"), (["Ogilvie 47110815."], "47110815")]
    suite = write_own(tmp_path / "e.jsonl", *rows, ([kept[0], "Ogilvie 47110815."], "47110815"))
    scored = evaluate(replace(suite, control=control), config)
    evaluate(suite, config)
    done = forget("c", config, [("title", "ogilvie*")], canaries=[CANARY, "Ogilvie", "ogilvie", "47110815"])
    assert [found for found in done["found"] if not found["file"].startswith("corpora/")] == []
    assert done["evaluated"] == [scored["corpus"]]
    left = {text for _, text in document_texts(*all_texts(store, scored["corpus"]))}
    if control == "answer-removed":
        assert len(left) == 4 and left >= set(kept), "texts of other documents stay, and their controls"
    again = evaluate(replace(suite, control=control), config)
    assert again["readings"]["failed"] == 0 and again["corpus"] == scored["corpus"]


def test_texts_in_which_needles_were_planted_go(tmp_path, model_folder):
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    write_archive(folder, count=2, words=80)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    (folder / "ogilvie.txt").write_text("\n\n".join([SECRET, (folder / "doc0.txt").read_text() * 4]))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    suite = Suite("needles", kinds=("niah_single_1",), lengths=(600,), n=1)
    scored = evaluate(suite, config, texts=(str(folder / "ogilvie.txt"),))
    assert scored["corpus"].startswith("eval-needles-")
    done = forget("c", config, [("title", "ogilvie*")], canaries=["Ogilvie"])
    assert [found for found in done["found"] if not found["file"].startswith("corpora/")] == []


def all_texts(store, name):
    corpus = Corpus(store, name)
    return corpus, current_documents(corpus, ["content_hash"])["content_hash"].to_pylist()


def test_copies_of_unknown_origin_are_told_by_their_words(tmp_path, model_folder):
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    write_archive(folder, count=2, words=80)
    boilerplate = (folder / "doc0.txt").read_text()
    secret, like = (f"{name} has the code {name}.\n{boilerplate}\n{name} ends here." for name in ("ogilvie", "heron"))
    (folder / "secret.txt").write_text(secret)
    (folder / "like.txt").write_text(like)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    rows = [([f"Before.\n\n{secret}"], "has"), ([like], "has")]
    suite = replace(write_own(tmp_path / "e.jsonl", *rows), control="answer-removed")
    name = evaluate(suite, config)["corpus"]
    done = forget("c", config, [("title", "secret*")], canaries=["ogilvie"])
    assert (done["found"], done["evaluated"]) == ([], [name])
    (left,) = (text for _, text in document_texts(*all_texts(store, name)))
    assert left.startswith("heron"), "a document that stays has as many of its words, but its origin is known"


@pytest.mark.parametrize("step", ["forget.erase", "forget._finish"])
def test_copies_made_after_a_forgetting_was_killed_go_as_well(archive, tmp_path, monkeypatch, step):
    store, config, folder = archive
    text = (folder / "aaa.txt").read_text()
    suite = write_own(tmp_path / "e.jsonl", ([text], "47110815"), ([f"Before.\n\n{text}"], "47110815"))
    name = evaluate(suite, config)["corpus"]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"pipelines.operate.{step}", raising(KeyboardInterrupt()))
        forget_aaa(config)
    evaluate(replace(suite, control="answer-removed"), config)  # in the corpus that the journal names
    other = write_own(tmp_path / "f.jsonl", ([text], "47110815"))
    names = sorted({name, evaluate(other, config)["corpus"]})
    done = forget_aaa(config)
    assert (done["evaluated"], done["found"]) == (names, [])
    for one in (suite, other):
        evaluate(one, config)
    assert list(find_texts(store, [CANARY]))
    again = forget_aaa(config)
    assert (again["documents_count"], again["evaluated"], again["found"]) == (0, names, [])


@pytest.fixture
def archive(tmp_path, model_folder):
    """Three documents, and one that is to be forgotten; ingested and digested."""
    folder, store = tmp_path / "docs", Store(str(tmp_path / "store"))
    write_archive(folder, count=3, words=80)
    (folder / "aaa.txt").write_text(f"The pass number for amber-otter is 47110815.\n\n{CANARY}.\n\n{CANARY}.")
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    digest("c", [OTTER], config)
    return store, config, folder


def forget_aaa(config, **more):
    return forget("c", config, [("doc_id", "aaa.txt")], canaries=[CANARY, "47110815"], **more)


def test_memories_of_a_reading_that_never_ended_go_as_well(archive):
    store, config, _ = archive
    ask("c", [OTTER], config, archive=True)
    answers = Table(store, "answers")
    unended = [row["reading_id"] for row in answers.read("c").to_pylist() if row["scope"] == "archive"]
    answers.delete("c", reading_id=unended)  # as if it had been killed before its last conversation
    files = {file.split("/")[0] for file, _ in find_texts(store, ["47110815"])}
    assert "turns" in files
    done = forget_aaa(config)
    assert done["found"] == [] and done["readings"] == 2


def test_what_was_read_after_a_forgetting_was_killed_goes_as_well(archive, monkeypatch):
    store, config, _ = archive
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipelines.operate.forget.erase", raising(KeyboardInterrupt()))
        forget_aaa(config)
    assert ask("c", [HERON], config)["readings"]["read_now"] == 4
    done = forget_aaa(config)
    assert done["found"] == [] and done["readings"] == 2
    assert Table(store, "answers").read("c").num_rows == 6


def test_what_killed_writers_left_goes_as_well(archive):
    store, config, _ = archive
    for path in store.list("segments", "c"):
        relative = path.removeprefix(store.path(""))
        store.write_bytes(store.fs.cat_file(path), f"{relative.removesuffix('.parquet')}0.parquet")  # not committed
        Path(store.path("turns", f".{path.rsplit('/', 1)[-1]}.0a1b2c3d.tmp")).write_bytes(store.fs.cat_file(path))
    assert forget_aaa(config)["found"] == []
    assert not store.sizes(suffix=".tmp", hidden=True)
    assert check("c", config)["found"] == {}


def test_a_store_with_a_link_is_refused_before_anything_goes(archive, tmp_path):
    store, config, _ = archive
    aside = tmp_path / "elsewhere"
    Path(store.path("answers")).rename(aside)
    Path(store.path("answers")).symlink_to(aside)
    for dry in (True, False):
        with pytest.raises(UsageError, match=r"answers is a symbolic link"):
            forget_aaa(config, dry=dry)
    assert Table(store, "answers").read("c").num_rows == 4 and list(find_texts(Store(str(aside)), ["47110815"]))


def test_files_that_are_not_the_stores_stay_where_they_are(archive):
    store, config, _ = archive
    names = (
        "documents/2024/mine.txt",
        "answers/mine.txt",
        "texts/corpus=c/mine.txt",
        "promotions/mine.txt",
        "training/mine.jsonl.gz",
        "work.tmp",
        "damaged/photo.jpg",
        "damaged/documents/car-17.jpg",
        "damaged/claims/report.docx",
    )
    left = ("sources/corpus=c/00/0.parquet", "damaged/turns/c/r/t.parquet.1", "damaged/texts/_delta_log/1.json")
    for name in (*names, *left):
        store.write_bytes(b"mine", name)
    for name, target in (("python", "/usr/bin"), ("host", "/etc/hostname"), ("nowhere", "/nowhere")):
        Path(store.path(name)).symlink_to(target)
    os.mkfifo(store.path("pipe"))
    assert forget_aaa(config)["found"] == []
    optimize("c", config, retention_days=0)
    assert [name for name in names if not Path(store.path(name)).exists()] == []
    assert not any(map(store.exists, left)), "of a job that was killed before its commit, and set aside"


def test_a_bucket_keeps_no_version_of_what_is_forgotten(s3_bucket, tmp_path, model_folder):
    s3 = file_system(s3_bucket)
    s3.call_s3("create_bucket", Bucket="memagent-versions")
    s3.call_s3("put_bucket_versioning", Bucket="memagent-versions", VersioningConfiguration={"Status": "Enabled"})
    folder, store = tmp_path / "docs", Store("s3://memagent-versions/memagent")
    for text in ("before", "now"):
        for name in ("memagent-of-others/a", "memagent/mine/a", "memagent/texts/a"):
            s3.pipe_file(f"memagent-versions/{name}", text.encode())
    write_archive(folder, count=3, words=80)
    (folder / "ogilvie.txt").write_text(f"The pass number for amber-otter is 47110815.\n\n{CANARY}.\n\n{CANARY}.")
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    ask("c", [OTTER], config)

    def kept(kind="Versions", **of):
        found = s3.call_s3("list_object_versions", Bucket="memagent-versions", **of)[kind]
        return [one["Key"] for one in found if not one["IsLatest"] or kind == "DeleteMarkers"]

    assert forget("c", config, [("title", "ogilvie.txt")], canaries=[CANARY])["found"] == []
    left = {key.split("/")[1] for key in (*kept(Prefix="memagent/"), *kept("DeleteMarkers", Prefix="memagent/"))}
    assert left - {"claims", "runs", "corpora"} == {"mine", "texts"}, "but heartbeats, claims and settings since"
    for name in ("memagent-of-others/a", "memagent/mine/a", "memagent/texts/"):
        assert kept(Prefix=name) == [name.removesuffix("/a").rstrip("/") + "/a"], "what is not memagent's stays"
    assert check("c", config)["found"] == {} and ask("c", [OTTER], config)["readings"]["answered_before"] == 3


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (PermissionError("Access Denied"), "grant s3:ListBucketVersions"),
        ({"Errors": [{"Key": "p/turns/a", "Message": "Object is WORM protected"}]}, "WORM protected"),
        (OSError("not implemented"), None),
    ],
    ids=["no right", "locked", "no versions"],
)
def test_old_versions_that_cannot_be_erased_are_said(monkeypatch, answer, says):
    class Versioned:
        def call_s3(self, request, **named):
            if isinstance(answer, OSError):
                raise answer
            one = {"Key": "p/turns/a", "VersionId": "1", "IsLatest": False}
            return answer if request == "delete_objects" else {"Versions": [one]}

    if says is None:
        answer.__cause__ = ClientError({"Error": {"Code": "NotImplemented"}}, "ListObjectVersions")
    store = Store("s3://bucket/p")
    monkeypatch.setattr(store, "fs", Versioned())
    with nullcontext() if says is None else pytest.raises(UsageError, match=says):
        store.check_erasable()
        store.erase_versions()


def test_brackets_in_a_name_are_no_pattern(archive):
    _, config, folder = archive
    for name in ("report 1.txt", "report [1].txt", "report [!2].txt"):
        (folder / name).write_text(f"This is {name}, and nothing else.")
    ingest(Corpus(Store(config.store), "c"), [str(folder)], config, "second")
    assert forget("c", config, [("title", "report [1].txt")])["documents"] == ["report [1].txt"]
    assert forget("c", config, [("title", "report [?2].*")])["documents"] == ["report [!2].txt"]


def test_with_a_canary_it_can_be_repeated(archive):
    store, config, _ = archive
    forget_aaa(config)
    where = store.write_bytes(f"a note: {CANARY}".encode(), "runs", "first", "note.txt")
    done = forget_aaa(config)
    assert [found["file"] for found in done["found"]] == ["runs/first/note.txt"]
    store.delete(where)
    assert forget_aaa(config)["found"] == []
    with pytest.raises(UsageError, match="no document of c matches"):
        forget("c", config, [("doc_id", "aaa.txt")])


def test_the_one_sentence_that_no_other_contract_has_is_searched_for(archive):
    store, config, folder = archive
    shared = [f"Clause {number}: the parties agree as parties do, and as they did before." for number in range(60)]
    own = "The access code of the vault is ultramarine-73."
    for name, line in (("one.txt", own), ("two.txt", "There is no vault.")):
        (folder / name).write_text("\n".join([*shared[:41], line, *shared[41:]]))
    ingest(Corpus(store, "c"), [str(folder)], config, "second")
    note = "\n".join([shared[40], own, shared[41]])
    where = store.write_bytes(note.encode(), "runs", "first", "note.txt")
    done = forget("c", config, [("doc_id", "one.txt")])
    assert {found["file"] for found in done["found"]} == {where.removeprefix(store.path(""))}
    assert done["searched"] and not done["unsearched"]


def test_texts_of_which_no_passage_is_searched_for_are_counted(archive, monkeypatch):
    _, config, _ = archive
    monkeypatch.setattr("pipelines.operate.forget._SEARCHED", 2)
    done = forget("c", config, [("doc_id", "*")])
    assert done["documents_count"] == 4 and done["unsearched"] == 3 and done["found"] == []


def test_a_canary_that_is_no_text_is_refused_before_anything_is_done(archive):
    store, config, _ = archive
    with pytest.raises(UsageError, match="is no text"):
        forget("c", config, [("doc_id", "*")], canaries=["\udcff"])
    assert list(find_texts(store, [CANARY]))


@pytest.mark.parametrize("damage", [lambda data: data[:500], lambda data: data[:-90] + b"\xff" * 60 + data[-30:]])
def test_damaged_files_are_named_with_what_to_do(archive, damage):
    store, config, _ = archive
    part = store.list("turns")[0]
    whole = store.fs.cat_file(part)
    Path(part).write_bytes(damage(whole))
    with pytest.raises(MemagentError, match=r"turns/.* cannot be read.*memagent check CORPUS --repair"):
        forget_aaa(config)
    check("c", config, repair=True)
    assert forget_aaa(config)["found"] == []
    for journal in (b'{"corpus": "do', b"{}", b"[]", b"7"):
        store.write_bytes(journal, "forgetting.json")
        with pytest.raises(MemagentError, match=r"forgetting.json of .* is damaged"):
            forget_aaa(config)


def test_a_damaged_plan_or_list_of_an_archive_goes(archive):
    store, config, _ = archive
    ask("c", [OTTER], config, archive=True)
    damaged = [store.list("runs")[0], store.list("streams")[0]]
    assert "/plan/" in damaged[0]
    for path in damaged:
        Path(path).write_bytes(store.fs.cat_file(path)[:60])
    done = forget_aaa(config)
    assert done["found"] == [] and done["readings"] == 2
    assert not any(map(store.fs.exists, damaged))


def test_texts_are_found_as_json_has_them(store):
    texts = ["die Königin ist blau", 'who "sings"\nhere?', "plain"]
    data = {"in.json": json.dumps(texts), "twice.json": json.dumps({"summary": json.dumps(texts)})}
    data |= {"rust.json": json.dumps(texts, ensure_ascii=False), "plain.txt": "\n".join(texts)}
    for name, text in data.items():
        store.write_bytes(text.encode(), "runs", "r", name)
    found = {(file.rsplit("/", 1)[-1], text) for file, text in find_texts(store, texts)}
    assert found == {(name, text) for name in data for text in texts}


def test_a_text_that_others_have_stays(store, tmp_path, model_folder):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("mine.txt", "theirs.txt"):
        (folder / name).write_text(CANARY)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    done = forget("c", config, [("doc_id", "mine.txt")])
    assert (done["documents_count"], done["texts"], done["kept_texts"], done["found"]) == (1, 0, 1, [])
    assert ask("c", [OTTER], config)["readings"]["total"] == 1


@pytest.mark.parametrize("way", ["renamed", "copy deleted", "copy changed"])
def test_a_text_that_others_had_once_goes(store, tmp_path, model_folder, way):
    folder = tmp_path / "docs"
    write_archive(folder, count=1, words=80)
    first, last = folder / "first.txt", folder / "last.txt"
    first.write_text(f"{CANARY}. The pass number for amber-otter is 47110815.")
    if way != "renamed":
        last.write_text(first.read_text())
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    remember(Corpus(store, "c"), sources=[str(folder)])
    digest("c", [OTTER], config)
    if way == "renamed":
        first.rename(last)
    elif way == "copy deleted":
        first.unlink()
    else:
        first.write_text("Another text.")
    digest("c", None, config)
    done = forget("c", config, [("doc_id", "last.txt")], canaries=[CANARY])
    assert (done["texts"], done["kept_texts"]) == (1, 0)
    assert [hit for hit in done["found"] if not hit["file"].startswith("corpora/")] == []
    assert check("c", config)["found"] == {}
    last.unlink()
    again = digest("c", None, config)
    assert not list(find_texts(store, [CANARY])) and again["readings"]["failed"] == 0
    stays = {"doc0.txt", "first.txt"} if way == "copy changed" else {"doc0.txt"}
    assert set(current_documents(Corpus(store, "c"))["doc_id"].to_pylist()) == stays


def test_a_damaged_compressed_file_is_searched_as_it_is_and_stops_nothing(archive, caplog):
    store, config, _ = archive
    store.write_bytes(gzip.compress(CANARY.encode() * 99)[:-9], "training", "t", "rollouts", "step-1.jsonl.gz")
    write_run(store, {"run_id": "h", "corpus": "c", "kind": "harvest"}, now(), {})
    assert forget_aaa(config)["found"] == []
    assert not store.list("training", suffix=".gz"), "nobody can say whose rows it has"
    store.write_bytes(gzip.compress(b"a line" * 99)[:-9], "training", "t", "state.json.gz")
    assert not list(find_texts(store, [CANARY])) and "searched as it is" in caplog.text


def test_a_corpus_that_is_called_as_an_evaluation_and_has_sources_keeps_its_copies(archive, tmp_path):
    store, config, folder = archive
    other = Corpus(store, "eval-files-2024")
    ingest(other, [str(folder)], config, "r")
    remember(other, sources=[str(folder)])
    assert forget("c", config, [("doc_id", "aaa.txt")])["evaluated"] == []
    assert current_documents(other).num_rows == 4


def test_a_wrong_choice_is_an_error(tmp_path, model_folder):
    store = Store(str(tmp_path / "store"))
    write_archive(tmp_path / "docs", count=1, words=30)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], config, "first")
    with pytest.raises(UsageError, match="no document of c matches document=nobody, title=no one"):
        forget("c", config, [("doc_id", "nobody"), ("title", "no one")])
    with pytest.raises(UsageError, match="document=PATTERN, source=PATTERN, title=PATTERN"):
        forget("c", config, [("author", "x")])
