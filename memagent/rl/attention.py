"""Attention of a packed row: conversations that do not see each other, and prefixes that several of them share.

On a GPU that computes in half precision a row is one call of a variable-length kernel (FlashAttention-2, arXiv
2307.08691), however many conversations it has. Elsewhere it is one call of PyTorch's attention for each conversation.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn

NAME = "memagent-packed"
"""Name of this attention in transformers."""
_HALF = (torch.bfloat16, torch.float16)
_AMPERE = (8, 0)
_LARGEST_HEAD = 256
_TRIED = ((40, 7, 19), (23,))
"""Blocks of the row by which the kernel is tried."""
_CLOSE = 0.05
"""Difference to a call for each conversation, of values around 1 in half precision."""
_log = logging.getLogger("memagent.learner")


@dataclass(frozen=True, slots=True)
class Spans:
    """Queries and keys of a row as the kernel takes them: a conversation's keys are its prefix and itself."""

    query_ends: Tensor
    """[n + 1], int32: where the queries of each conversation or prefix end, from 0."""
    key_ends: Tensor
    """[n + 1], int32: the same of its keys."""
    keys: Tensor | None
    """[K]: the row's place of each key; None if they are the row itself, since nothing is shared."""
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], device: torch.device) -> Self:
        """Lay out a row."""
        queries: list[int] = []
        keys: list[list[range]] = []
        start = 0
        for first, *others in blocks:
            prefix = range(start, start + first)
            queries.append(first)
            keys.append([prefix])
            start += first
            for own in others:
                queries.append(own)
                keys.append([prefix, range(start, start + own)])
                start += own
        lengths = [sum(map(len, ranges)) for ranges in keys]
        shared = any(len(ranges) > 1 for ranges in keys)
        places = [torch.arange(one.start, one.stop) for ranges in keys for one in ranges] if shared else []
        return cls(
            torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device),
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device),
            torch.cat(places).to(device) if shared else None,
            max(queries),
            max(lengths),
        )


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which tokens of a row see which."""

    blocks: tuple[tuple[int, ...], ...]
    """As in `memagent.rl.packing.Packed`."""
    masks: tuple[tuple[Any, ...], ...] = ()
    """By block the masks of its conversations behind a prefix; none where the kernel is used."""
    spans: Spans | None = None
    """For the kernel; None: a call for each conversation."""

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype, head: int) -> Self:
        """Lay out a row once, for all layers; `head` is the size of an attention head."""
        whole = tuple(tuple(block) for block in blocks)
        if has_kernel(device, dtype, head):
            return cls(whole, spans=Spans.of(whole, device))
        return cls(whole, tuple(tuple(_mask(block[0], own, device) for own in block[1:]) for block in whole))


def has_kernel(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Tell whether the variable-length kernel computes this: half precision on a GPU since Ampere, where it works."""
    if device.type != "cuda" or dtype not in _HALF or head % 8 or head > _LARGEST_HEAD:
        return False
    return torch.cuda.get_device_capability(device) >= _AMPERE and is_right(device, dtype, head)


@cache
@torch.enable_grad()  # the first row may be one that is only scored
def is_right(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Try the kernel once, forward and backward, on a short row; if it fails or is wrong, that is logged."""
    made = torch.Generator().manual_seed(0)
    tokens = sum(map(sum, _TRIED))
    values = [torch.randn(1, count, tokens, head, generator=made) for count in (4, 2, 2, 4)]
    *first, weights = (part.to(device, dtype) for part in values)
    layout = RowLayout(_TRIED, tuple(tuple(_mask(block[0], own, device) for own in block[1:]) for block in _TRIED))
    found = []
    try:
        for spans in (Spans.of(_TRIED, device), None):
            row = [part.clone().requires_grad_() for part in first]
            query, key, value = row
            if spans is not None:
                attended = attend_by_kernel(query, key, value, spans, None)
            else:
                attended = attend_by_conversation(query, key, value, layout, None)
            torch.autograd.backward((attended * weights.transpose(1, 2)).sum())
            found.append([attended.detach(), *(part.grad for part in row)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, atol=_CLOSE, rtol=_CLOSE)
    except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
        _log.warning("a call for each conversation is used: the variable-length kernel does not work here: %s", error)
        return False
    return True


def register() -> None:
    """Make this attention known to transformers by its `NAME`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: each conversation is attended to by itself."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each block; query [1, heads, T, size], result [1, T, heads, size]."""
    layout: RowLayout = options.get("layout") or RowLayout(((query.shape[2],),), ((),))
    if layout.spans is not None:
        return attend_by_kernel(query, key, value, layout.spans, scaling), None
    return attend_by_conversation(query, key, value, layout, scaling), None


def attend_by_kernel(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    """Attend by one call; query [1, heads, T, size], result [1, T, heads, size].

    The kernel's causal mask ends with the last query at the last key, which is that of queries behind a prefix.
    """
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    if spans.keys is not None:
        keys, values = keys.index_select(0, spans.keys), values.index_select(0, spans.keys)
    attended = cast(
        Tensor,
        varlen_attn(
            queries.contiguous(),
            keys.contiguous(),
            values.contiguous(),
            spans.query_ends,
            spans.key_ends,
            max_q=spans.longest_query,
            max_k=spans.longest_key,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        ),
    )
    return attended[None]


def attend_by_conversation(
    query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scaling: float | None
) -> Tensor:
    """Attend by a call for each conversation, of just the pairs that count; shapes as in `attend_by_kernel`.

    A block ``(n,)`` is a conversation. In ``(p, a, b, ...)`` the conversations a, b, ... attend to the prefix p and to
    themselves. No mask of the whole row is needed.
    """
    lengths = [length for block in layout.blocks for length in block]
    # One split, whose gradient is one concatenation: a slice's gradient would be as long as the row.
    queries, keys, values = (torch.split(part, lengths, dim=2) for part in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    attended: list[Tensor] = []
    for block, masks in zip(layout.blocks, layout.masks, strict=True):
        first = len(attended)
        attended.append(
            F.scaled_dot_product_attention(
                queries[first], keys[first], values[first], is_causal=True, scale=scaling, enable_gqa=grouped
            )
        )
        for own, mask in zip(range(first + 1, first + len(block)), masks, strict=True):
            attended.append(
                F.scaled_dot_product_attention(
                    queries[own],
                    torch.cat([keys[first], keys[own]], dim=2),
                    torch.cat([values[first], values[own]], dim=2),
                    attn_mask=mask,
                    scale=scaling,
                    enable_gqa=grouped,
                )
            )
    return torch.cat(attended, dim=2).transpose(1, 2)


def _mask(prefix: int, own: int, device: torch.device) -> Any:
    """Return the causal mask [own, prefix + own] of a conversation behind a prefix; on a GPU it is never made."""
    if device.type == "cuda":
        return causal_lower_right(own, prefix + own)
    return torch.ones(own, prefix + own, dtype=torch.bool, device=device).tril(prefix)
