"""A node that is lost while the store is checked does not end a run."""

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from infra.cluster.jobs import _saw


@pytest.mark.parametrize(("answer", "expected"), [(True, True), (False, False), (ActorDiedError(), True)])
def test_a_lost_node_passes(monkeypatch, answer, expected):
    def get(call):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    assert _saw("call") is expected


def test_an_error_of_the_look_itself_is_raised(monkeypatch):
    def get(call):
        raise RayTaskError("exists", "no such folder", OSError("unreadable"))

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RayTaskError):
        _saw("call")
