"""Attention of a packed row: conversations that do not see each other, and prefixes that several of them share.

On a GPU that computes in half precision a row is one call of a variable-length kernel (FlashAttention-2, arXiv
2307.08691), however many conversations it has. Elsewhere it is one call of PyTorch's attention for each conversation.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn

from memagent.errors import UsageError

NAME = "memagent-packed"
"""Name of this attention in transformers."""
_HALF = (torch.bfloat16, torch.float16)
_AMPERE = (8, 0)
_LARGEST_HEAD = 256
_TRIED = ((40, 7, 19), (23,))
"""Blocks of the row by which the kernel is tried."""
_TRIED_WINDOW = 9
"""Window of the same."""
_NOT_COMPUTED = ("softcap", "s_aux")
"""Options of transformers' attentions that are refused: caps of the scores, and sinks."""
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
    spans: Spans | None = None
    """For the kernel; None: a call for each conversation."""
    _masks: dict[tuple[int, int, int | None], Any] = field(default_factory=dict)
    """Masks that a layer has made, by prefix, own tokens and window: the next layers use them again."""

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype, head: int) -> Self:
        """Lay out a row once, for all layers; `head` is the size of an attention head."""
        whole = tuple(tuple(block) for block in blocks)
        return cls(whole, Spans.of(whole, device) if has_kernel(device, dtype, head) else None)

    def mask(self, prefix: int, own: int, window: int | None, device: torch.device) -> Any:
        """Return the mask of a conversation behind a prefix; None if it is just causal.

        Args:
            prefix, own: tokens.
            window: tokens that a token attends to, itself among them; None: all before it.
            device: of the mask, [own, prefix + own], which is never made on a GPU where there is no window.
        """
        if window is not None and window >= prefix + own:
            window = None
        if window is None and not prefix:
            return None
        key = prefix, own, window
        if key not in self._masks:
            if window is None and device.type == "cuda":
                return causal_lower_right(own, prefix + own)
            seen = torch.ones(own, prefix + own, dtype=torch.bool, device=device).tril(prefix)
            self._masks[key] = seen if window is None else seen.triu(prefix - window + 1)
        return self._masks[key]


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
    try:
        for window in (None, _TRIED_WINDOW):
            found = []
            for layout in (RowLayout(_TRIED, Spans.of(_TRIED, device)), RowLayout(_TRIED)):
                row = [part.clone().requires_grad_() for part in first]
                attended = attend(row[0], row[1], row[2], layout, window=window)
                torch.autograd.backward((attended * weights.transpose(1, 2)).sum())
                found.append([attended.detach(), *(part.grad for part in row)])
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other, atol=_CLOSE, rtol=_CLOSE)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        _log.warning("a call for each conversation is used: the variable-length kernel does not work here: %s", error)
        return False
    return True


def register() -> None:
    """Make this attention known to transformers by its `NAME`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    # No mask: each conversation is attended to by itself.
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks an attention to; see `attend`. Caps of the scores and sinks are refused."""
    asked = [name for name in _NOT_COMPUTED if options.get(name) is not None]
    if asked:
        raise UsageError(f"{type(module).__name__} cannot be trained: its attention has {', '.join(asked)}")
    layout: RowLayout = options.get("layout") or RowLayout(((query.shape[2],),))
    return attend(query, key, value, layout, scaling, sliding_window), None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    scaling: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Attend causally within each block.

    Args:
        query: [1, heads, T, size]. key, value: the same, of as many heads or fewer.
        layout: which tokens see which.
        scaling: of the scores; None: one over the root of the size.
        window: tokens that a token attends to, itself among them; None: all before it.

    Returns:
        [1, T, heads, size].
    """
    if layout.spans is not None:
        return _by_kernel(query, key, value, layout.spans, scaling, window)
    return _by_conversation(query, key, value, layout, scaling, window)


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None, window: int | None
) -> Tensor:
    """Attend by one call.

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
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        ),
    )
    return attended[None]


def _by_conversation(
    query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scaling: float | None, window: int | None
) -> Tensor:
    """Attend by a call for each conversation, of just the pairs that count.

    A block ``(n,)`` is a conversation. In ``(p, a, b, ...)`` the conversations a, b, ... attend to the prefix p and to
    themselves. No mask of the whole row is needed.
    """
    lengths = [length for block in layout.blocks for length in block]
    # One split, whose gradient is one concatenation: a slice's gradient would be as long as the row.
    queries, keys, values = (torch.split(part, lengths, dim=2) for part in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    attended: list[Tensor] = []
    for prefix, *others in layout.blocks:
        first = len(attended)
        for at, own in enumerate((prefix, *others), first):
            before = prefix if at > first else 0
            mask = layout.mask(before, own, window, query.device)
            attended.append(
                F.scaled_dot_product_attention(
                    queries[at],
                    torch.cat([keys[first], keys[at]], dim=2) if before else keys[at],
                    torch.cat([values[first], values[at]], dim=2) if before else values[at],
                    attn_mask=mask,
                    is_causal=mask is None,
                    scale=scaling,
                    enable_gqa=grouped,
                )
            )
    return torch.cat(attended, dim=2).transpose(1, 2)
