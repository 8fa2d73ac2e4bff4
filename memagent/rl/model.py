"""The policy as the learner sees it: log-probabilities of response tokens in packed rows.

Any causal model that transformers knows; its attention is replaced by one that separates the conversations of a packed
row, so packing changes only the speed.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memagent.errors import UsageError

_ATTENTION = "memagent-packed"
_ROWS = 2048
"""Response tokens whose logits are in memory at once: 1.2 GB with a vocabulary of 150,000."""


class PolicyModel(nn.Module):
    """A causal model that returns log-probabilities instead of logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        blocks: Sequence[Sequence[int]],
        targets: Tensor,
        temperature: float = 1.0,
        chunks: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Score response tokens, at most `_ROWS` at a time.

        Args:
            ids: [T] tokens of all conversations, end to end.
            positions: [T] place of each token in its conversation.
            blocks: which tokens see which (`memagent.rl.packing.Packed`); their numbers sum to T.
            targets: [n] places of response tokens in `ids`.
            temperature: at which they were sampled.
            chunks: passes through the head; at least `chunks_of` the targets, further ones are empty. Where ZeRO shards
                the head, each pass is a collective, and all ranks must make as many.

        Returns:
            Log-probability [n] (float32, with a gradient) and entropy [n] (without one) of each response token.
        """
        base: Any = self.model.model
        states = base(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            blocks=[(sum(block), _mask(block, ids.device)) for block in blocks],
        ).last_hidden_state[0]
        chosen, said = states[targets - 1], ids[targets]
        count = max(chunks, chunks_of(len(targets)))
        slices = [slice(i * _ROWS, (i + 1) * _ROWS) for i in range(count)]
        parts = [self._score(chosen[part], said[part], temperature, recompute=count > 1) for part in slices]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _score(self, states: Tensor, ids: Tensor, temperature: float, recompute: bool) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and recompute:  # of logits, in the backward pass
            kept: tuple[Tensor, Tensor] = checkpoint(self._head, states, ids, temperature, use_reentrant=False)
            return kept
        return self._head(states, ids, temperature)

    def _head(self, states: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        head: Any = self.model.lm_head
        logits = head(states).float() / temperature
        every = F.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(every.exp() * every).sum(-1)
        return every.gather(-1, ids[:, None])[:, 0], entropy


def chunks_of(targets: int) -> int:
    """Return in how many passes through the head so many response tokens are scored, at least one."""
    return max(1, math.ceil(targets / _ROWS))


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
    dropout: float = 0.0,
    scaling: float | None = None,
    blocks: Sequence[tuple[int, Tensor | None]] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each block; query [1, heads, T, size], result [1, T, heads, size]."""
    parts = list(blocks or [(query.shape[2], None)])
    lengths = [length for length, _ in parts]
    shared = query.shape[1] != key.shape[1]
    said = [
        F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=shared
        )
        for q, k, v, (_, mask) in zip(
            *(torch.split(part, lengths, dim=2) for part in (query, key, value)), parts, strict=True
        )
    ]
    return torch.cat(said, dim=2).transpose(1, 2), None


def _mask(block: Sequence[int], device: torch.device) -> Tensor | None:
    """Return the attention mask of a block with a shared prefix; None if it is plainly causal."""
    if len(block) == 1:
        return None
    owner = torch.repeat_interleave(torch.arange(len(block), device=device), torch.tensor(block, device=device))
    seen = (owner[None, :] == owner[:, None]) | (owner[None, :] == 0)
    return seen.tril()


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
