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

from memagent.errors import UsageError
from memagent.rl import attention
from memagent.rl.footprint import check_family

_LOGITS_BYTES = 512 * 2**20
"""Bytes of the logits that are in memory at once, in float32."""


class TokenHead(nn.Module):
    """A linear output layer that returns log-probabilities of given tokens instead of logits.

    A module of its own, so that ZeRO-3 gathers its weight once for all chunks, and ranks with different numbers of
    response tokens still meet in the same collectives.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Take over the layer's parameters, which may be tied to the embedding."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, states: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Score tokens.

        Args:
            states: [n, hidden] of the model's last layer, each before the token that it predicts.
            ids: [n] the tokens.
            temperature: divides the logits.

        Returns:
            Log-probability [n] in float32, and entropy [n] without a gradient.
        """
        vocabulary = getattr(self.weight, "ds_shape", self.weight.shape)[0]
        rows = max(1, _LOGITS_BYTES // (4 * vocabulary))
        apply: Any = _TokenScores.apply
        scores: tuple[Tensor, Tensor] = apply(states, self.weight, self.bias, ids, temperature, rows)
        return scores


class _TokenScores(torch.autograd.Function):
    """Log-probability and entropy of tokens, a chunk of logits at a time."""

    @staticmethod
    def forward(
        context: Any, states: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, *options: Any
    ) -> tuple[Tensor, Tensor]:
        temperature, rows = options
        logprobs, entropies, totals = [], [], []
        for part in _chunks(len(ids), rows):
            logits = _logits(states[part], weight, bias, temperature)
            total = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, ids[part, None])[:, 0] - total)
            # H = log Z - sum(p * logit)
            entropies.append(total - (logits.sub(total[:, None]).exp_().mul_(logits)).sum(-1))
            totals.append(total)
        context.save_for_backward(states, ids, torch.cat(totals))
        # Not saved by autograd: ZeRO-3 gives the storage back after the forward pass, and gathers it for the backward.
        context.layer = weight, bias
        context.options = temperature, rows
        entropy = torch.cat(entropies)
        context.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, ids, totals = context.saved_tensors
        weight, bias = context.layer
        temperature, rows = context.options
        to_states = torch.empty_like(states) if context.needs_input_grad[0] else None
        # Sums over chunks are in float32: in bfloat16 a chunk's part would be rounded away beside what is there.
        sums: Any = {"dtype": torch.float32}
        to_weight = torch.zeros_like(weight, **sums) if context.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, **sums) if bias is not None and context.needs_input_grad[2] else None
        for part in _chunks(len(ids), rows):
            # d logprob / d logit = [token is chosen] - p
            slope = _logits(states[part], weight, bias, temperature).sub_(totals[part, None]).exp_().neg_()
            slope.scatter_add_(-1, ids[part, None], torch.ones_like(slope[:, :1]))
            slope = slope.mul_(gradients[0][part, None] / temperature).to(states.dtype)
            if to_states is not None:
                to_states[part] = slope @ weight
            if to_weight is not None:
                to_weight += slope.T @ states[part]
            if to_bias is not None:
                to_bias += slope.sum(0)
        own = [None if one is None else one.to(states.dtype) for one in (to_weight, to_bias)]
        return to_states, *own, None, None, None


def _chunks(count: int, rows: int) -> list[slice]:
    return [slice(first, min(first + rows, count)) for first in range(0, max(count, 1), rows)]


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return nn.functional.linear(states, weight, bias).float().div_(temperature)


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
        self, ids: Tensor, positions: Tensor, blocks: Sequence[Sequence[int]], targets: Tensor, temperature: float = 1.0
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
        model: Any = self.model
        base, config = model.model, model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        states = base(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            layout=attention.RowLayout.of(blocks, ids.device, model.dtype, head=size),
        ).last_hidden_state[0]
        scores: tuple[Tensor, Tensor] = model.lm_head(states[targets - 1], ids[targets], temperature)
        return scores


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32, *, checkpointing: bool = False) -> PolicyModel:
    """Load a model folder or a Hugging Face name; safetensors only, no code from the model.

    Raises:
        UsageError: the folder is incomplete, or holds weights in another format, or a model of another family than
            `FAMILIES`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    attention.register()
    path = Path(folder)
    if path.is_dir() and (not list(path.glob("*.safetensors")) or not (path / "config.json").is_file()):
        raise UsageError(f"{path} is no model folder: it needs config.json and *.safetensors")
    try:
        check_family(AutoConfig.from_pretrained(str(folder), trust_remote_code=False).model_type)
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype, attn_implementation=attention.NAME, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{folder} cannot be loaded for training: {error}") from error
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return PolicyModel(model)


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
