"""Low-rank adaptation: the model's own weights stay as they are, and small factors beside them are trained.

LoRA, arXiv 2106.09685. What is trained is a few percent of the weights, so that the optimiser's states are, too.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTORS = (".down", ".up")
"""Ends of the factors' names."""


class LowRank(nn.Module):
    """A linear layer with a frozen weight W [out, in] that computes x (W + scale * up @ down)^T."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        """Take over a layer's weight and bias; the change is nothing before the first step."""
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
    """Freeze a causal model, and give every linear layer but its head low-rank factors that are trained."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(parent, name, LowRank(child, rank, alpha))


def adapted(model: nn.Module) -> dict[str, LowRank]:
    """Return the layers that `adapt` has changed, by the names of their weights."""
    return {f"{name}.weight": one for name, one in model.named_modules() if isinstance(one, LowRank)}
