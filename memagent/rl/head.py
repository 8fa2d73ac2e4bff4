"""The output layer of a policy in training: linear layer and cross-entropy in one.

The logits of a response of 1,024 tokens over a vocabulary of 150,000 are 0.6 GB, and autograd would hold several copies
of those of a whole row. Here a chunk of them stands at a time: computed once to score, and again for the gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn

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
        to_weight = torch.zeros_like(weight) if context.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and context.needs_input_grad[2] else None
        for part in _chunks(len(ids), rows):
            # d logprob / d logit = [token is chosen] - p
            slope = _logits(states[part], weight, bias, temperature).sub_(totals[part, None]).exp_().neg_()
            slope.scatter_add_(-1, ids[part, None], torch.ones_like(slope[:, :1]))
            slope = slope.mul_(gradients[0][part, None] / temperature).to(states.dtype)
            if to_states is not None:
                to_states[part] = slope @ weight
            if to_weight is not None:
                to_weight.addmm_(slope.T, states[part])
            if to_bias is not None:
                to_bias += slope.sum(0)
        return to_states, to_weight, to_bias, None, None, None


def _chunks(count: int, rows: int) -> list[slice]:
    return [slice(first, min(first + rows, count)) for first in range(0, max(count, 1), rows)]


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    return nn.functional.linear(states, weight, bias).float().div_(temperature)
