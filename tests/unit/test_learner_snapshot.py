"""Which rank writes and reads which tensors of a checkpoint."""

import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from infra.learner import checkpoint
from infra.learner.checkpoint import PARTS, SnapshotIndex, read_index, share_out

SIZES = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 10**9), max_size=20)


@given(SIZES, st.integers(1, 8))
def test_every_parameter_has_one_owner_and_shares_are_even(sizes, world):
    owners = share_out(list(sizes.items()), world)
    assert owners.keys() == sizes.keys() and set(owners.values()) <= set(range(world))
    held = [sum(size for name, size in sizes.items() if owners[name] == rank) for rank in range(world)]
    assert not sizes or max(held) - min(held) <= max(sizes.values())


@given(SIZES, st.integers(1, 8), st.integers(1, 8))
def test_any_number_of_ranks_reads_each_file_once_and_finds_each_parameter(sizes, saved, world):
    index = SnapshotIndex(7, saved, share_out(list(sizes.items()), saved))
    files = [file for rank in range(world) for file in index.files_of(rank, world)]
    assert sorted(files) == sorted(index.file(part, shard) for part in PARTS for shard in range(saved))
    for name, owner in index.owners.items():
        assert index.file("weights", owner) in index.files_of(index.reader_of(name, world), world)


def test_an_index_is_read_as_it_was_written():
    index = SnapshotIndex(3, 2, {"a": 1})
    assert read_index(json.dumps(asdict(index)).encode()) == index
    for nonsense in (b"nonsense", b"[]", b'{"steps": 3}'):
        with pytest.raises(ValueError, match=r"Expecting|no index"):
            read_index(nonsense)


def test_a_large_model_is_written_as_several_files_with_an_index(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    weights = {name: torch.full((4, 4), float(i)) for i, name in enumerate(("b", "a", "c"))}
    monkeypatch.setattr(checkpoint, "_SHARD_BYTES", 130)
    checkpoint.write_model(weights, tmp_path / "base", tmp_path / "made")
    index = json.loads((tmp_path / "made" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 3 * 64 and index["weight_map"].keys() == weights.keys()
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "made" / file)[name], weights[name])
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").glob("*.safetensors")}
    assert set(files) == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)} and set(files.values()) == {0o644}
    monkeypatch.undo()
    checkpoint.write_model(weights, tmp_path / "base", tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["config.json", "model.safetensors"]
