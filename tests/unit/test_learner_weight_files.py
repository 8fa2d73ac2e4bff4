"""The engines of a node share the files of a version's weights."""

import os
import stat

import numpy as np
import pytest

from infra.learner.weights import NodeWeights
from memagent.errors import TrainingError


def content(data):
    """A file's bytes as they come from Ray's object store."""
    return np.frombuffer(data, np.uint8)


def folders(base):
    (home,) = base.iterdir()
    return sorted(path.name for path in home.iterdir() if path.is_dir())


def refused():
    raise AssertionError("they are there already")
    yield


def test_the_first_engine_writes_and_the_last_one_deletes(tmp_path):
    one, two = NodeWeights(tmp_path), NodeWeights(tmp_path)
    first = one.take("v1", [("model.safetensors", content(b"1")), ("../config.json", content(b"{}"))])
    assert two.take("v1", refused()) == first
    assert (first / "model.safetensors").read_bytes() == b"1" and (first / "config.json").is_file()
    assert stat.S_IMODE(os.stat(first.parent).st_mode) == 0o700
    second = one.take("v2", [("model.safetensors", content(b"2"))])
    assert folders(tmp_path) == ["v1", "v2"], "the other engine may still start again with the first"
    assert two.take("v2", refused()) == second and folders(tmp_path) == ["v2"]
    one.leave()
    assert folders(tmp_path) == ["v2"]
    two.leave()
    two.leave()
    assert folders(tmp_path) == []


def test_what_a_dead_process_left_is_deleted(tmp_path):
    process = os.fork()
    if not process:
        NodeWeights(tmp_path).take("old", [("a", content(b"1"))])
        os._exit(0)
    os.waitpid(process, 0)
    assert folders(tmp_path) == ["old"]
    NodeWeights(tmp_path).take("new", [("a", content(b"2"))])
    assert folders(tmp_path) == ["new"]


def test_files_that_cannot_be_written_leave_nothing_behind(tmp_path):
    def broken():
        yield "a", content(b"1")
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError, match="No space left"):
        NodeWeights(tmp_path).take("v1", broken())
    assert folders(tmp_path) == []
