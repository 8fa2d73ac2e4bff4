"""Versions of the reader from end to end: published, compared, promoted, used, rolled back; locally and on S3."""

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import pipelines.promote
from infra.readers import ReaderSpec
from infra.store.delta import Table
from infra.store.documents import DocumentWriter
from infra.store.location import Corpus, Store
from infra.store.policies import fetch, policies, policy, promote, promoted, publish, rollback
from infra.store.schemas import now
from memagent.config import load_config
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.nano import bundled
from memagent.records import text_hash
from memagent.rl.promotion import PromotionSpec
from pipelines.cli.policies import app, show_comparison
from pipelines.evaluate import evaluate
from tests.support.texts import filler
from tests.support.versions import model, provenance

LOCALLY = pytest.mark.parametrize("root", ["local"], indirect=True)
ASKED = PromotionSpec(kinds=(), corpora=("archive",))
"""Harvested questions only: the scripted reader does not know the wording of needles."""
SCRIPTED = ["flush_seconds=0.2", "reading.segment_tokens=128"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMAGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def base(tmp_path):
    """The model that a line begins with; the line's name is the policy's."""
    return model(tmp_path / "base")


def config(store, model, **more):
    return load_config(store=store.url, engine__model=str(model), **more)


def published(store, base, tmp_path, number):
    policy = ReaderSpec(config(store, f"{base}@shipped")).policy
    folder = model(tmp_path / str(number), number)
    return publish(store, folder, policy.name, provenance(policy.policy_id), parent_folder=base)


def test_the_promoted_version_is_read_with(store, base, tmp_path, cache):
    own = ReaderSpec(config(store, base)).policy
    one, two = (published(store, base, tmp_path, number) for number in (1, 2))
    assert ReaderSpec(config(store, base)).policy == own  # candidates are not promoted
    promote(store, one, "better")
    promote(store, two, "better")
    reader = ReaderSpec(config(store, base))
    assert (reader.policy.policy_id, reader.policy.name) == (two, own.name)
    assert reader.reading.segment_tokens == 128 and reader.max_model_len == 1024
    for named in (own.name, two, two[:-3]):
        assert ReaderSpec(config(store, named)).policy == reader.policy
    assert ReaderSpec(config(store, one)).policy.policy_id == one
    assert ReaderSpec(config(store, f"{base}@shipped")).policy == own
    copy = ReaderSpec(config(store, fetch(store, policy(store, one))))  # a version's folder says what it is
    assert (copy.policy.policy_id, copy.policy.name) == (one, own.name)
    rollback(store, own.name)
    assert ReaderSpec(config(store, base)).policy.policy_id == one
    rollback(store, own.name)
    assert ReaderSpec(config(store, base)).policy == own


def test_other_engines_and_names_do_not_ask_the_registry(store, base, tmp_path, cache, monkeypatch):
    promote(store, published(store, base, tmp_path, 1), "better")
    nano = ReaderSpec(config(store, "nano")).policy
    assert nano.path == str(bundled())
    for named in ("nano@shipped", "nano@rl", nano.policy_id, nano.policy_id[:-4]):
        assert ReaderSpec(config(store, named)).policy == nano
    supervised = ReaderSpec(config(store, "nano@sft")).policy
    assert (supervised.name, supervised.path) == ("nano", str(bundled("sft"))) and supervised != nano
    assert ReaderSpec(config(store, supervised.policy_id)).policy == supervised
    monkeypatch.setattr("infra.readers.promoted", None)
    monkeypatch.setattr("infra.readers.policies", None)
    assert ReaderSpec(config(store, base, engine__kind="scripted")).policy.name == "scripted"
    assert ReaderSpec(config(store, "nano@shipped", engine__kind="scripted")).policy.path == str(bundled())
    assert ReaderSpec(config(store, base, engine__kind="openai")).policy.path == str(base)


def test_a_name_that_means_nothing_is_refused(store, base, tmp_path, cache):
    one = published(store, base, tmp_path, 1)
    with pytest.raises(UsageError, match=f"no policy 'nano@zz'.*{one}"):
        ReaderSpec(config(store, "nano@zz"))


def test_files_that_are_gone_are_said_to_be(store, base, tmp_path, cache):
    one = published(store, base, tmp_path, 1)
    for path in store.list(policy(store, one)["path"], suffix=""):
        store.delete(path)
    promote(store, one, "by hand")
    with pytest.raises(ConfigError, match=r"gone from .*rollback"):
        ReaderSpec(config(store, base))


def test_a_version_on_s3_is_fetched_once_whole_and_checked(s3_bucket, base, tmp_path, cache):
    store = Store(f"{s3_bucket}/{tmp_path.name}/fetched")
    row = policy(store, published(store, base, tmp_path, 1))
    weights = store.path(row["path"], "model.safetensors")
    whole = store.read_bytes(row["path"], "model.safetensors")
    store.fs.pipe_file(weights, whole[:-4] + b"\1\2\3\4")
    with pytest.raises(ConfigError, match="other bytes"):
        fetch(store, row)
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    store.fs.pipe_file(weights, whole)
    folder = fetch(store, row)
    assert folder.is_relative_to(cache) and (folder / "model.safetensors").read_bytes() == whole
    store.fs.rm(store.path(row["path"]), recursive=True)
    assert fetch(store, row) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.fixture
def readings(monkeypatch, model_folder):
    """Every policy reads by rule, in the way (method) that `ways` has for its id: what it is worth is known."""
    ways = {}

    def read(suite, config, **more):
        policy_id = ReaderSpec(config).policy.policy_id
        sets = [*SCRIPTED, f"method={ways[policy_id]}"]
        scripted = load_config(store=config.store, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
        return evaluate(suite, scripted, **more)

    monkeypatch.setattr(pipelines.promote, "evaluate", read)
    return ways


@pytest.fixture
def archive(store):
    questions(store)


SIDES = ("train", "validation", "promotion", "promotion", "promotion", "test")


def questions(store, count=24):
    """An archive with documents, and a question on each; half of them are for promotion."""
    writer = DocumentWriter(Corpus(store, "archive"), "run", now())
    rows = []
    for i in range(count):
        rest = "Nothing else is told in this report. " * 30
        text = f"{rest}\n\nThe pass number for amber-otter is {1000 + i}.\n\n{rest}"
        name = text_hash(text)
        stands = {"doc_id": f"{i}.txt", "content_hash": name, "state": "present", "chars": len(text)}
        row = {**stands, "title": "", "source": f"{i}.txt", "source_stamp": "", "first_seen": now()}
        writer.document(row, text)
        asked = {"question": "What is the pass number for amber-otter?", "answers": [f"{1000 + i}"], "stream": [name]}
        row = {"corpus": "archive", "qa_id": f"q{i}", **asked, "documents": [f"{i}.txt"], "source": "gold"}
        row |= {"evidence": [], "tags": [], "reading_id": "", "policy_id": ""}
        rows.append({**row, "split": SIDES[i % 6], "split_version": 2, "harvested_at": now()})
    writer.commit()
    Table(store, "qa").append(rows)


def test_the_check_promotes_the_better_and_refuses_the_worse(
    store, base, tmp_path, cache, archive, readings, caplog, capsys
):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(filler(random.Random(0), 3000))
    needles = {"kinds": ("niah_single_1",), "lengths": (400, 800), "n": 10, "texts": (str(tmp_path / "texts"),)}
    spec = PromotionSpec(**needles, corpora=("archive",), small_groups="observe")
    own = ReaderSpec(config(store, base)).policy.policy_id
    good, bad = (published(store, base, tmp_path, number) for number in (1, 2))
    readings |= {own: "truncate", good: "memagent", bad: "truncate"}
    record = pipelines.promote.run_promotion(config(store, base), good, spec=spec)
    assert record["promoted"] and record["reason"].startswith("better: +0.406 [+0.23, +0.59], n=32 in 32 documents")
    assert [group["name"] for group in record["groups"]] == [
        "needles at 400 tokens",
        "needles at 800 tokens",
        "questions of archive",
    ]
    counts = {"there": 12, "asked": 12, "unvouched": 0, "trained_on": 0, "without_text": 0}
    assert (record["overall"]["n"], record["overall"]["documents"], record["questions"]) == (32, 32, counts)
    assert record["power"]["look"] == 1 and record["power"]["power"] < 0.5 and record["power"]["warning"] in caplog.text
    assert (record["candidate"], record["incumbent"]) == (good, own)
    show_comparison({**record, "questions": counts | {"there": 15, "trained_on": 3}})
    said = " ".join(capsys.readouterr().out.split())
    assert f"{good} against {own}" in said
    assert "questions left out: 0 not vouched for by people, 3 on texts of training, 0 without text" in said
    row = policy(store, good)
    assert (row["status"], row["promotion"]["runs"], row["promotion"]["spec"]["n"]) == ("promoted", record["runs"], 10)
    record = pipelines.promote.run_promotion(config(store, base), bad, spec=spec)
    assert not record["promoted"] and "worse on questions of archive: −1.000" in record["reason"]
    assert record["incumbent"] == good
    assert {one["policy_id"]: one["status"] for one in policies(store)} == {good: "promoted", bad: "refused"}
    with pytest.raises(UsageError, match=r"was refused .*--force"):
        pipelines.promote.run_promotion(config(store, base), bad, spec=spec)
    with pytest.raises(UsageError, match="promoted already"):
        pipelines.promote.run_promotion(config(store, base), good, spec=spec)


@LOCALLY
def test_a_check_that_cannot_tell_changes_nothing(store, base, tmp_path, cache, archive, readings, monkeypatch):
    own = ReaderSpec(config(store, base)).policy.policy_id
    one = published(store, base, tmp_path, 1)
    readings |= {own: "memagent", one: "memagent"}
    check = pipelines.promote.run_promotion
    with pytest.raises(UsageError, match="no tests"):
        check(config(store, base), one, spec=PromotionSpec(kinds=(), corpora=()))
    with pytest.raises(UsageError, match="there is no corpus 'nothing'"):
        check(config(store, base), one, spec=PromotionSpec(kinds=(), corpora=("nothing",)))
    with pytest.raises(UsageError, match="with vllm"):
        check(config(store, base, engine__kind="scripted"), one, spec=ASKED)
    with pytest.raises(UsageError, match="no policy 'toy@0'"):
        check(config(store, base), "toy@0", spec=ASKED)
    with pytest.raises(UsageError, match="are one policy"):
        check(config(store, base), one, incumbent=one, spec=ASKED)
    with pytest.raises(UsageError, match="different tokenizers"):
        check(config(store, base), one, incumbent="nano@shipped", spec=ASKED)
    with pytest.raises(UsageError, match="give --model with its base model"):
        check(config(store, "nano"), one, spec=ASKED)
    assert policy(store, one)["status"] == "candidate" and promoted(store, policy(store, one)["name"]) is None


@LOCALLY
def test_a_policy_that_cannot_read_at_all_is_not_judged(store, base, tmp_path, cache, archive, readings, monkeypatch):
    own = ReaderSpec(config(store, base)).policy.policy_id
    one = published(store, base, tmp_path, 1)
    readings |= {own: "memagent", one: "memagent"}
    results = pipelines.promote.run_results

    def failed(place, run_id):
        table = results(place, run_id)
        none = pa.nulls(table.num_rows, pa.string())
        return table.set_column(table.schema.get_field_index("answer"), "answer", none)

    monkeypatch.setattr(pipelines.promote, "run_results", failed)
    with pytest.raises(MemagentError, match=r"all 12 readings of .* failed"):
        pipelines.promote.run_promotion(config(store, base), one, spec=ASKED)
    assert policy(store, one)["status"] == "candidate"


@LOCALLY
def test_one_that_went_to_work_meanwhile_is_not_replaced(store, base, tmp_path, cache, archive, readings, monkeypatch):
    own = ReaderSpec(config(store, base)).policy.policy_id
    one, other = (published(store, base, tmp_path, number) for number in (1, 2))
    readings |= {own: "truncate", one: "memagent"}
    results = pipelines.promote.run_results

    def meanwhile(place, run_id):
        promote(store, other, "by hand")
        return results(place, run_id)

    monkeypatch.setattr(pipelines.promote, "run_results", meanwhile)
    with pytest.raises(UsageError, match=f"{other} was promoted while .*compare it again"):
        pipelines.promote.run_promotion(config(store, base), one, spec=ASKED)
    assert {row["policy_id"]: row["status"] for row in policies(store)} == {one: "candidate", other: "promoted"}


def command(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_a_version_is_compared_on_the_engines_that_it_was_trained_with(tmp_path, base, cache, monkeypatch):
    store = Store(str(tmp_path / "store"))
    parent = ReaderSpec(config(store, f"{base}@shipped")).policy
    made = provenance(parent.policy_id)
    made = replace(made, config={"engine": {"max_num_seqs": 7}, "pool": {"max_size": 3}, "reading": {}})
    one = publish(store, model(tmp_path / "1", 1), parent.name, made, parent_folder=base)
    used = []

    def check(settings, candidate, spec, show):
        used.append((candidate, settings.engine.max_num_seqs, settings.pool.max_size, spec.data))
        raise UsageError("enough")

    monkeypatch.setattr(pipelines.promote, "run_promotion", check)
    at = (one, "--model", base, "--store", store.url, "--promotion", tmp_path / "own.jsonl")
    command("promote", *at)
    command("promote", *at, "--set", "pool.max_size=2")
    own = (str(tmp_path / "own.jsonl"),)
    assert used == [(one, 7, 3, own), (one, 7, 2, own)]


def test_the_commands_show_promote_and_roll_back(tmp_path, base, cache, readings):
    store = Store(str(tmp_path / "store"))
    questions(store)
    at = ("--store", store.url)
    assert command(*at).output.startswith("no versions")
    own = ReaderSpec(config(store, base)).policy
    good, bad = (published(store, base, tmp_path, number) for number in (1, 2))
    readings |= {own.policy_id: "bm25", good: "memagent", bad: "truncate"}
    tests = ("--check", "kinds=", "--check", "small_groups=observe", "--corpus", "archive", *at)
    check = (*tests, "--model", base)
    done = command("promote", bad, *check)
    assert done.exit_code == 1 and f"{bad} against {own.policy_id}" in done.output
    assert "worse on questions of archive" in done.output.replace("\n", "")
    refused = command("promote", bad, *check)
    assert isinstance(refused.exception, UsageError) and "--force" in str(refused.exception)
    assert command("promote", bad, "--force", *at).output == f"{bad} is promoted: by hand\n"
    done = command("promote", good, "--json", *check)
    assert done.exit_code == 0 and json.loads(done.output)["incumbent"] == bad
    assert f"{good} against {bad}" in command("show", "promoted", *at).output
    assert json.loads(command("show", good.rpartition("@")[2], "--json", *at).output)["status"] == "promoted"
    listed = {row["policy_id"]: row["status"] for row in json.loads(command("--json", *at).output)["policies"]}
    assert listed == {good: "promoted", bad: "retired"}
    compared = json.loads(command("compare", bad, "promoted", "--json", *tests).output)
    assert not compared["promoted"] and (compared["candidate"], compared["incumbent"]) == (bad, good)
    assert command("rollback", *at).output == f"{bad} is promoted again\n"
    assert "its base model is used" in command("rollback", own.name, *at).output
    assert "no version of any model is promoted" in str(command("rollback", *at).exception)
    assert "options go after" in str(command(*at, "show", good).exception)
    text = " ".join(command("list", *at).output.split())
    assert "refused" in text and "+100.0%" in text and "-100.0%" in text
