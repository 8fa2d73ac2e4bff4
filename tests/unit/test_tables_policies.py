"""The registry on real Delta tables: what is published, and that at most one version of a lineage is promoted."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infra.store.policies
from infra.models import changed_files, folder_hash
from infra.readers import resolve_policy
from infra.store.delta import Table
from infra.store.location import Store
from infra.store.policies import fetch, policies, policy, promote, promoted, publish, refuse, rollback
from infra.store.schemas import POLICIES_OF, PolicyRow, now
from memagent.config import EngineConfig
from memagent.errors import ConfigError, UsageError
from tests.support.versions import model, provenance


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


def registered(store: Store, *ids: str) -> None:
    """Register versions without files."""
    empty = {"path": "", "parent": "", "reason": "", "data_version": 1, "run_id": "", "commit": ""}
    texts = {"config": "{}", "metrics": "{}", "promotion": None, "made_at": now(), "changed_at": now()}
    rows = [{"policy_id": one, "name": one.rpartition("@")[0], "status": "candidate"} for one in ids]
    Table(store, "policies").insert_new([{"corpus": POLICIES_OF, **empty, **texts, **row} for row in rows])


def status(store: Store) -> dict[str, str]:
    return {row["policy_id"]: row["status"] for row in policies(store)}


def at_work(store: Store, name: str) -> str | None:
    row: PolicyRow | None = promoted(store, name)
    return row and row["policy_id"]


def test_a_candidate_is_published_once(store, tmp_path):
    folder = model(tmp_path / "one", 1)
    first = publish(store, folder, "toy", provenance("toy@0"))
    version = Table(store, "policies").version()
    assert publish(store, folder, "toy", provenance("toy@0", "other")) == first
    assert Table(store, "policies").version() == version
    (row,) = policies(store)
    assert (row["status"], row["run_id"], row["config"], row["metrics"]) == (
        "candidate",
        "run",
        {"steps": 2},
        {"reward": 0.5},
    )
    place = fetch(store, row)
    assert (place / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    described = json.loads((place / "policy.json").read_text())
    assert set(described.pop("files")) == {path.name for path in place.iterdir()} - {"policy.json", "model.safetensors"}
    assert described == {"name": "toy", "parent": "toy@0", "run_id": "run"}
    assert resolve_policy(EngineConfig(model=str(place)), store).policy_id == first


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "reading.json", "model.safetensors"])
def test_a_folder_that_is_not_whole_is_refused(store, tmp_path, name):
    folder = model(tmp_path / "one", 1)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"lacks {name}"):
        publish(store, folder, "toy", provenance(""))
    assert policies(store) == []


def test_weights_that_are_cut_off_or_missing_are_refused(store, tmp_path):
    folder = model(tmp_path / "one", 1)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-3])
    with pytest.raises(ConfigError, match="cut off"):
        publish(store, folder, "toy", provenance(""))
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    with pytest.raises(ConfigError, match=r"lacks model-2\.safetensors"):
        publish(store, folder, "toy", provenance(""))


def test_how_a_version_reads_is_checked_like_its_weights(store, tmp_path):
    """The id is a hash of weights, configuration and tokenizer; policy.json has those of all files."""
    publish(store, model(tmp_path / "one", 1), "toy", provenance("toy@0"))
    (row,) = policies(store)
    place = fetch(store, row)
    reading = place / "reading.json"
    before = reading.read_text()
    reading.write_text(before.replace("{", '{"protocol": "raw",', 1))
    with pytest.raises(ConfigError, match=r"reading\.json in .* changed since toy@"):
        fetch(store, row)
    reading.unlink()
    with pytest.raises(ConfigError, match=r"reading\.json"):
        fetch(store, row)
    reading.write_text(before)
    assert fetch(store, row) == place
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert fetch(store, row) == place, "weights are not hashed at each start"
    assert folder_hash(place) != row["policy_id"].rpartition("@")[2]
    assert changed_files(place) == []


def test_a_link_out_of_the_folder_is_not_published(store, tmp_path):
    """Links of the Hugging Face cache lead into its blobs, and are followed."""
    folder = tmp_path / "models--x" / "snapshots" / "one"
    model(folder, 1)
    blob = tmp_path / "models--x" / "blobs" / "abc"
    blob.parent.mkdir()
    (folder / "reading.json").rename(blob)
    (folder / "reading.json").symlink_to(blob)
    (tmp_path / "secret").write_text("{}")
    (folder / "notes.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=r"notes\.json is a link to .*secret"):
        publish(store, folder, "toy", provenance("toy@0"))
    assert policies(store) == []
    (folder / "notes.json").unlink()
    publish(store, folder, "toy", provenance("toy@0"))
    assert (fetch(store, policies(store)[0]) / "reading.json").read_text() == blob.read_text()


def test_another_tokenizer_is_refused(store, tmp_path):
    parent = publish(store, model(tmp_path / "one", 1), "toy", provenance(""))
    other = model(tmp_path / "two", 2)
    spec = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(spec, indent=4))
    publish(store, other, "toy", provenance(parent))  # the same, laid out otherwise
    spec["model"]["vocab"]["more"] = len(spec["model"]["vocab"])
    (other / "tokenizer.json").write_text(json.dumps(spec))
    one = tmp_path / "one"
    for wanted in ({"parent": parent}, {"parent": "toy@gone"}, {"parent": "x", "parent_folder": one}):
        with pytest.raises(ConfigError, match=r"not the tokenizer of .*Copy tokenizer\.json"):
            publish(store, other, "toy", provenance(wanted["parent"]), parent_folder=wanted.get("parent_folder"))
    with pytest.raises(ConfigError, match="not the tokenizer of more@0"):
        publish(store, other, "more", provenance("more@0"), parent_folder=one)
    with pytest.raises(ConfigError, match="not the tokenizer of nano@"):
        publish(store, other, "nano", provenance("nano@0"))
    with pytest.raises(ConfigError, match="is a version of 'toy'"):
        publish(store, other, "more", provenance(parent))
    assert len(policies(store)) == 2


def test_the_parent_itself_is_no_version(store, tmp_path):
    first = publish(store, model(tmp_path / "one", 1), "toy", provenance(""))
    with pytest.raises(ConfigError, match="weights unchanged"):
        publish(store, model(tmp_path / "copy", 1), "toy", provenance(first))


def test_a_version_is_found_by_what_tells_it(store):
    registered(store, "toy@aa11", "toy@ab22", "team/toy@aa33")
    promote(store, "toy@ab22", "")
    assert [policy(store, one)["policy_id"] for one in ("toy@ab22", "toy@ab", "ab", "promoted")] == ["toy@ab22"] * 4
    assert policy(store, "team/toy@a")["policy_id"] == "team/toy@aa33"
    for wanted in ("toy@a", "aa"):
        with pytest.raises(UsageError, match="may be any of"):
            policy(store, wanted)
    for wanted in ("toy@", "toy", "zz", "team/toy@promoted", ""):
        with pytest.raises(UsageError, match=r"no policy .*There are: .*toy@aa11"):
            policy(store, wanted)


def test_promotion_retires_and_rollback_goes_back(store):
    registered(store, "toy@a", "toy@b", "other@c")
    promote(store, "other@c", "first")
    promote(store, "toy@a", "better", {"p": 0.01})
    promote(store, "toy@b", "better", {"p": 0.02})
    assert status(store) == {"toy@a": "retired", "toy@b": "promoted", "other@c": "promoted"}
    back = rollback(store, "toy")
    assert back and (back["policy_id"], back["reason"]) == ("toy@a", "toy@b was rolled back")
    assert back["promotion"] == {"p": 0.01}
    assert rollback(store, "toy") is None and at_work(store, "toy") is None
    assert status(store) == {"toy@a": "refused", "toy@b": "refused", "other@c": "promoted"}
    with pytest.raises(UsageError, match="is promoted to roll back from"):
        rollback(store, "toy")


def test_what_may_not_be_is_said(store):
    registered(store, "toy@a", "toy@b")
    refuse(store, "toy@a", "worse on needles")
    with pytest.raises(UsageError, match=r"refused \(worse on needles\).*--force"):
        promote(store, "toy@a", "")
    assert promote(store, "toy@a", "by hand", force=True)["reason"] == "by hand"
    with pytest.raises(UsageError, match="is promoted: memagent"):
        refuse(store, "toy@a", "")
    with pytest.raises(UsageError, match="was promoted while"):
        promote(store, "toy@b", "better", instead_of=None)
    with pytest.raises(UsageError, match="no policy 'toy@x'"):
        promote(store, "toy@x", "")
    assert status(store) == {"toy@a": "promoted", "toy@b": "candidate"}


def test_a_retired_one_that_is_refused_can_still_be_rolled_back_to(store):
    registered(store, "toy@a", "toy@b", "toy@c")
    for one in ("toy@a", "toy@b", "toy@c"):
        promote(store, one, "")
    refuse(store, "toy@a", "not better")
    assert policy(store, "toy@a")["reason"] == "not better"
    assert rollback(store, "toy", instead_of="toy@c")["policy_id"] == "toy@b"
    with pytest.raises(UsageError, match="toy@b was promoted meanwhile"):
        rollback(store, "toy", instead_of="toy@c")
    assert rollback(store, "toy")["policy_id"] == "toy@a"


def test_of_two_promotions_at_once_the_later_decides_again(store, monkeypatch):
    registered(store, "toy@a", "toy@b")
    meanwhile = ["toy@b"]

    def at():
        if meanwhile:
            promote(store, meanwhile.pop(), "meanwhile")
        return now()

    monkeypatch.setattr(infra.store.policies, "now", at)
    promote(store, "toy@a", "late")
    assert status(store) == {"toy@a": "promoted", "toy@b": "retired"}


def test_many_promotions_at_once_leave_one(store):
    ids = [f"toy@{one}" for one in "abcd"]
    registered(store, *ids)
    ready = Barrier(len(ids))

    def run(one):
        ready.wait()
        promote(Store(store.url), one, "")

    with ThreadPoolExecutor(len(ids)) as pool:
        list(pool.map(run, ids))
    assert sorted(status(store).values()) == ["promoted", "retired", "retired", "retired"]


operation = st.tuples(st.sampled_from(["promote", "force", "refuse", "rollback"]), st.sampled_from("abc"))


@settings(max_examples=25, deadline=None)
@given(st.lists(operation, max_size=10))
def test_any_sequence_leaves_at_most_one_promoted(operations):
    """Against a stack: a promotion pushes, a rollback pops and refuses what it popped."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(str(Path(folder) / "store"))
        registered(store, "toy@a", "toy@b", "toy@c")
        stack: list[str] = []
        refused: set[str] = set()
        for name, which in operations:
            one = f"toy@{which}"
            try:
                if name == "rollback":
                    rollback(store, "toy")
                    refused.add(stack.pop())
                elif name == "refuse":
                    refuse(store, one, "worse")
                    refused |= {one} - set(stack)
                else:
                    promote(store, one, "better", force=name == "force")
                    refused.discard(one)
                    stack = [other for other in stack if other != one] + [one] if stack[-1:] != [one] else stack
            except UsageError:
                assert name == "rollback" or one in refused or stack[-1:] == [one]
            expected = {one: "candidate" for one in ("toy@a", "toy@b", "toy@c")}
            expected |= dict.fromkeys(refused, "refused") | dict.fromkeys(stack, "retired")
            expected |= {stack[-1]: "promoted"} if stack else {}
            assert status(store) == expected
            assert at_work(store, "toy") == (stack[-1] if stack else None)
