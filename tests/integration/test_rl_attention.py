"""The variable-length kernel and a call for each conversation give the same.

PyTorch has the kernel for GPUs only. On a CPU its documented contract is computed in its place, one sequence after the
other, so that what is handed to it is held to be right; its own check of shapes runs on tensors without data.
"""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.varlen import varlen_attn

from memagent.rl import attention
from memagent.rl.attention import RowLayout, Spans, attend
from memagent.rl.model import load_model
from memagent.rl.packing import pack, units
from tests.integration.test_rl_model import folder, score  # noqa: F401
from tests.support.rl_samples import alike

CPU = torch.device("cpu")
BLOCKS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch's variable-length kernel is for GPUs")


def documented(query, key, value, cu_seq_q, cu_seq_k, *, max_q, max_k, scale, window_size, enable_gqa):
    """Compute what `varlen_attn` says that it computes: [T, heads, size]."""
    assert window_size[1] == 0 and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert len(query) == cu_seq_q[-1] and len(key) == len(value) == cu_seq_k[-1]
    assert max_q == cu_seq_q.diff().max() and max_k == cu_seq_k.diff().max()
    found = []
    for at in range(len(cu_seq_q) - 1):
        mine, theirs = slice(cu_seq_q[at], cu_seq_q[at + 1]), slice(cu_seq_k[at], cu_seq_k[at + 1])
        one, other, third = (part.transpose(0, 1)[None] for part in (query[mine], key[theirs], value[theirs]))
        behind = other.shape[2] - one.shape[2]
        mask = torch.ones(one.shape[2], other.shape[2], dtype=torch.bool).tril(behind)
        if window_size[0] >= 0:
            mask = mask.triu(behind - window_size[0])
        seen = F.scaled_dot_product_attention(one, other, third, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
        found.append(seen[0].transpose(0, 1))
    return torch.cat(found)


def row(blocks, heads, *, device=CPU, dtype=torch.float64, seed=0):
    """Return queries, keys and values of a row, [1, heads, T, 8]."""
    made = torch.Generator().manual_seed(seed)
    tokens = sum(map(sum, blocks))
    parts = [torch.randn(1, count, tokens, 8, generator=made, dtype=torch.float64) for count in heads]
    return [part.to(device, dtype).requires_grad_() for part in parts]


@given(BLOCKS, st.sampled_from([(4, 4, 4), (4, 2, 2)]), st.sampled_from([None, 1, 3, 8, 50]))
def test_kernel_and_conversations_agree_with_their_gradients(blocks, heads, window):
    ours, theirs = row(blocks, heads), row(blocks, heads)
    layout = RowLayout.of(blocks, CPU, torch.float64, head=8)
    assert layout.spans is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "varlen_attn", documented)
        one = attend(*ours, RowLayout(layout.blocks, Spans.of(blocks, CPU)), 0.3, window)
        other = attend(*theirs, layout, 0.3, window)
        torch.testing.assert_close(one, other)
        weights = torch.randn(one.shape, generator=torch.Generator().manual_seed(1), dtype=one.dtype)
        (one * weights).sum().backward()
        (other * weights).sum().backward()
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_a_model_scores_the_same_by_the_kernel(folder, monkeypatch):  # noqa: F811
    flat = pack(units(alike_items(), 10_000))
    by_conversation = load_model(folder)
    expected = score(by_conversation, flat)[0]
    expected.sum().backward()
    monkeypatch.setattr(attention, "has_kernel", lambda *_: True)
    monkeypatch.setattr(attention, "varlen_attn", documented)
    by_kernel = load_model(folder, checkpointing=True)
    by_kernel.train()
    found = score(by_kernel, flat)[0]
    found.sum().backward()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for (name, one), two in zip(by_kernel.named_parameters(), by_conversation.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4, msg=name)


def alike_items():
    return alike(random.Random(1), 9)


def test_without_a_shared_prefix_nothing_is_copied():
    assert Spans.of([(5,), (7,)], CPU).keys is None
    spans = Spans.of([(3, 2, 4), (2,)], CPU)
    assert spans.keys is not None
    assert spans.keys.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 9, 10]
    assert spans.query_ends.tolist() == [0, 3, 5, 9, 11] and spans.key_ends.tolist() == [0, 3, 8, 15, 17]
    assert (spans.longest_query, spans.longest_key) == (4, 7)


def test_pytorch_takes_what_it_is_given():
    meta = torch.device("meta")
    blocks = [(30, 5, 9), (12,)]
    given_row = row(blocks, (4, 2, 2), device=meta, dtype=torch.bfloat16)
    found = attend(*given_row, RowLayout(tuple(blocks), Spans.of(blocks, meta)), window=7)
    assert attention.varlen_attn is varlen_attn
    assert found.shape == (1, 56, 4, 8) and found.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "device, dtype, head", [("cpu", torch.bfloat16, 64), ("cuda", torch.float32, 64), ("cuda", torch.bfloat16, 260)]
)
def test_what_the_kernel_does_not_compute(device, dtype, head):
    assert not attention.has_kernel(torch.device(device), dtype, head)


def broken(*_, **__):
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    "kernel, works", [(documented, True), (broken, False), (lambda query, *_, **__: query * 0.5, False)]
)
def test_a_kernel_is_tried_before_it_is_used(monkeypatch, caplog, kernel, works):
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    attention.is_right.cache_clear()
    with torch.no_grad():
        assert attention.is_right(CPU, torch.bfloat16, 64) is works
    assert ("does not work here" in caplog.text) is not works
    attention.is_right.cache_clear()


@needs_gpu
@pytest.mark.parametrize("heads", [(4, 4, 4), (4, 2, 2)])
def test_the_kernel_itself(heads):
    gpu, blocks = torch.device("cuda"), [(300, 50, 90, 7), (120,), (64, 64)]
    ours, theirs = (row(blocks, heads, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    one = attend(*ours, RowLayout(tuple(blocks), Spans.of(blocks, gpu)))
    other = attend(*theirs, RowLayout(tuple(blocks)))
    torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    one.sum().backward()
    other.sum().backward()
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, atol=5e-2, rtol=5e-2)
