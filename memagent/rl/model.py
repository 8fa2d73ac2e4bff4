"""The policy as the learner sees it: log-probabilities of response tokens in packed rows.

Any causal model that transformers knows. Its attention is replaced by one that separates the conversations of a packed
row and computes a shared prefix once, so packing changes only the speed; its head scores response tokens without ever
holding all their logits.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from memagent.errors import UsageError
from memagent.rl.head import TokenHead

_ATTENTION = "memagent-packed"


class PolicyModel(nn.Module):
    """A causal model that returns log-probabilities instead of logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        head = model.lm_head
        if not isinstance(head, nn.Linear):
            raise UsageError(f"a model whose head is a {type(head).__name__} cannot be trained: it must be linear")
        model.lm_head = TokenHead(head)
        self.model = model

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        blocks: Sequence[Sequence[int]],
        targets: Tensor,
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Score response tokens.

        Args:
            ids: [T] tokens of all conversations, end to end.
            positions: [T] place of each token in its conversation.
            blocks: which tokens see which (`memagent.rl.packing.Packed`); their numbers sum to T.
            targets: [n] places of response tokens in `ids`.
            temperature: at which they were sampled.

        Returns:
            Log-probability [n] (float32, with a gradient) and entropy [n] (without one) of each response token.
        """
        base: Any = self.model.model
        states = base(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            blocks=[(tuple(block), [_mask(block[0], own, ids.device) for own in block[1:]]) for block in blocks],
        ).last_hidden_state[0]
        head: Any = self.model.lm_head
        scores: tuple[Tensor, Tensor] = head(states[targets - 1], ids[targets], temperature)
        return scores


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32, *, checkpointing: bool = False) -> PolicyModel:
    """Load a model folder or a Hugging Face name; safetensors only, no code from the model.

    Raises:
        UsageError: the folder is incomplete, or holds weights in another format.
    """
    from transformers import AutoModelForCausalLM

    _register()
    path = Path(folder)
    if path.is_dir() and (not list(path.glob("*.safetensors")) or not (path / "config.json").is_file()):
        raise UsageError(f"{path} is no model folder: it needs config.json and *.safetensors")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype, attn_implementation=_ATTENTION, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{folder} cannot be loaded for training: {error}") from error
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return PolicyModel(model)


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_ATTENTION, _attend)
    AttentionMaskInterface.register(_ATTENTION, _no_mask)


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
    """Attend causally within each block; query [1, heads, T, size], result [1, T, heads, size].

    A block ``(n,)`` is a conversation. In ``(p, a, b, ...)`` the conversations a, b, ... attend to the prefix p and to
    themselves: one call each, of just the pairs that count, so that no mask of the whole row is needed and a GPU runs
    its flash kernels.
    """
    blocks = options.get("blocks") or [((query.shape[2],), [])]
    lengths = [length for block, _ in blocks for length in block]
    # One split, whose gradient is one concatenation: a slice's gradient would be as long as the row.
    queries, keys, values = (torch.split(part, lengths, dim=2) for part in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    attended: list[Tensor] = []
    for block, masks in blocks:
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
    return torch.cat(attended, dim=2).transpose(1, 2), None


def _mask(prefix: int, own: int, device: torch.device) -> Tensor:
    """Return the causal mask [own, prefix + own] of a conversation behind a prefix; on a GPU it is never made."""
    if device.type == "cuda":
        return causal_lower_right(own, prefix + own)
    return torch.ones(own, prefix + own, dtype=torch.bool, device=device).tril(prefix)


FACTORS = (".down", ".up")
"""Suffixes of the factors' names."""


class LowRank(nn.Module):
    """A linear layer with a frozen weight W [out, in] that computes x (W + scale * up @ down)^T."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        """Take over a layer's weight and bias; the initial change is zero."""
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        down = torch.empty(rank, base.in_features, dtype=base.weight.dtype)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, dtype=base.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for [..., in]."""
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.down), self.up) * self.scale


def adapt(model: nn.Module, rank: int, alpha: float) -> None:
    """Freeze a causal model, and add trainable low-rank factors to all linear layers except its head."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(parent, name, LowRank(child, rank, alpha))


def adapted(model: nn.Module) -> dict[str, LowRank]:
    """Return the adapted layers by the names of their weights."""
    return {f"{name}.weight": one for name, one in model.named_modules() if isinstance(one, LowRank)}
