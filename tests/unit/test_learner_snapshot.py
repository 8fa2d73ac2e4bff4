"""Which rank writes and reads which tensors of a checkpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_checkpoints_of_the_first_version_have_one_file_a_part():
    index = read_index(json.dumps({"steps": 3}).encode())
    assert index.files_of(0, 2) == [f"{part}.safetensors" for part in PARTS] and not index.files_of(1, 2)
    assert index.reader_of("any", 2) == 0
    with pytest.raises(ValueError, match="Expecting"):
        read_index(b"nonsense")
