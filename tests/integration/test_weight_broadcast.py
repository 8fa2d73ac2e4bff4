"""Weights by broadcast: a sender and receivers in processes of their own, over gloo."""

import socket

import pytest
import torch

from infra.learner.weights import Rendezvous, _buckets, receive, send
from tests.support.ranks import RANKS

CPU = torch.device("cpu")
LAYOUT = (
    ("embed", (37, 8), "bfloat16"),
    ("norm", (3,), "float32"),
    ("scale", (), "float32"),
    ("up", (64, 33), "bfloat16"),
    ("down", (5, 7, 2), "float32"),
)


def weights():
    torch.manual_seed(0)
    return [(name, torch.randn(shape)) for name, shape, _ in LAYOUT]


def meeting(world, bucket_bytes):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Rendezvous("127.0.0.1", sock.getsockname()[1], world, LAYOUT, bucket_bytes)


def give(place):
    send(place, weights(), CPU)


def take(place, rank, queue):
    # Cloned: a bucket goes away with the last of its views.
    queue.put({name: weight.clone().float().tolist() for name, weight in receive(place, rank, CPU)})


@pytest.mark.parametrize("bucket_bytes", [1, 700])
def test_every_receiver_has_what_was_sent(bucket_bytes):
    place, queue = meeting(3, bucket_bytes), RANKS.Queue()
    others = [RANKS.Process(target=take, args=(place, rank, queue)) for rank in (1, 2)]
    others.append(RANKS.Process(target=give, args=(place,)))
    for process in others:
        process.start()
    got = [queue.get(timeout=600) for _ in range(2)]
    for process in others:
        process.join()
    assert [process.exitcode for process in others] == [0, 0, 0]
    kinds = {name: getattr(torch, dtype) for name, _, dtype in LAYOUT}
    sent = {name: weight.to(kinds[name]).float().tolist() for name, weight in weights()}
    assert got == [sent, sent]


def test_buckets_hold_all_in_order_and_no_more_than_they_may():
    for limit in (1, 200, 700, 2**20):
        buckets = list(_buckets(LAYOUT, limit))
        assert [entry for bucket in buckets for entry in bucket] == list(LAYOUT)
        sizes = [sum(torch.Size(s).numel() * getattr(torch, d).itemsize for _, s, d in bucket) for bucket in buckets]
        assert all(size <= limit or len(bucket) == 1 for size, bucket in zip(sizes, buckets, strict=True))
    assert len(list(_buckets(LAYOUT, 1))) == len(LAYOUT)
    assert len(list(_buckets(LAYOUT, 2**20))) == 1


def test_a_weight_out_of_order_is_not_sent_as_another():
    place = meeting(1, 2**20)
    with pytest.raises(RuntimeError, match="norm was to be sent where embed stands"):
        send(place, reversed(weights()[:2]), CPU)
