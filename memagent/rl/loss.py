"""The loss of Multi-Conv DAPO: sums over tokens, divided by the minibatch's token count by the caller.

A true token mean: all response tokens of a minibatch weigh the same, whatever their rank and micro-batch (DAPO, arXiv
2503.14476, section 3.3; MemAgent, arXiv 2507.02259, equation 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memagent.rl.config import LossRecipe

_FAR = 20.0


@dataclass(frozen=True, slots=True)
class Summed:
    """The sums of one micro-batch. `objective` has a gradient; the rest are metrics."""

    objective: Tensor
    """Scalar: sum of the clipped policy loss and the weighted KL term over the tokens."""
    counts: dict[str, float]
    """Sums over the tokens: tokens, policy loss, kl, clipped low, high and dual, ratio, importance weight,
    logprob_diff (absolute difference between sampled and recomputed log-probabilities), and masked tokens."""


@dataclass(frozen=True, slots=True)
class ResponseTokens:
    """What is known of the response tokens of a row before their loss: tensors of shape [n]."""

    old: Tensor
    """Log-probabilities under the weights at the beginning of the step, computed by the learner."""
    sampled: Tensor
    """Those of the rollout, as returned by the engine."""
    advantage: Tensor
    """Of each token's trajectory, or conversation."""
    lengths: Sequence[int]
    """Tokens of each response, in order; their sum is n."""
    reference: Tensor | None = None
    """Log-probabilities under the reference policy; needed where `kl_coef` is not 0."""


def token_loss(new: Tensor, given: ResponseTokens, recipe: LossRecipe) -> Summed:
    """Sum the loss of response tokens by their log-probabilities under the current weights: `new` [n], with a gradient.

    Clipped on both sides (clip-higher: DAPO, section 3.1), and for negative advantages below (arXiv 1912.09729);
    weighted by truncated importance sampling. The KL term is estimated by k3 (unbiased and never negative).

    Raises:
        ValueError: shapes differ, or the reference is missing.
    """
    old, sampled, advantage = given.old, given.sampled, given.advantage
    if not new.shape == old.shape == sampled.shape == advantage.shape:
        raise ValueError(f"shapes differ: {new.shape}, {old.shape}, {sampled.shape}, {advantage.shape}")
    away = new - old
    if recipe.objective == "gspo":
        mean = by_response(away.detach(), given.lengths)
        away = mean + new - new.detach()  # the value is the response's, the gradient each token's
    ratio = away.clamp(-_FAR, _FAR).exp()
    bounds = ratio.clamp(1.0 - recipe.clip_low, 1.0 + recipe.clip_high)
    plain, bounded = -advantage * ratio, -advantage * bounds
    clipped = bounded > plain
    loss = -advantage * bounds.detach() * new if recipe.objective == "cispo" else torch.maximum(plain, bounded)
    dual = torch.zeros_like(clipped)
    if recipe.dual_clip and recipe.objective != "cispo":
        floor = -advantage * recipe.dual_clip
        dual = (advantage < 0) & (loss > floor)
        loss = torch.where(dual, floor, loss)
    weight = torch.ones_like(old)
    if recipe.tis_cap:
        weight = (old - sampled).clamp(-_FAR, _FAR).exp().clamp(max=recipe.tis_cap)
        loss = loss * weight
    kept = kept_tokens(old, sampled, given.lengths, recipe)
    loss = loss * kept
    total = loss.sum()
    kl = torch.zeros(())
    if recipe.kl_coef:
        if given.reference is None:
            raise ValueError("a KL term needs the reference's log-probabilities")
        kl = (k3(new, given.reference) * kept).sum()
        total = total + recipe.kl_coef * kl
    with torch.no_grad():
        counts = {
            "tokens": float(new.numel()),
            "loss": loss.sum().item(),
            "kl": kl.item(),
            "clipped_low": (clipped & (advantage < 0)).sum().item(),
            "clipped_high": (clipped & (advantage > 0)).sum().item(),
            "clipped_dual": dual.sum().item(),
            "ratio": ratio.sum().item(),
            "weight": weight.sum().item(),
            "logprob_diff": (old - sampled).abs().sum().item(),
            "masked": new.numel() - kept.sum().item(),
        }
    return Summed(total, counts)


def by_response(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return for each token the mean of its response's values; both [n]."""
    return torch.cat([part.mean().expand(len(part)) for part in torch.split(values, list(lengths))] or [values])


def kept_tokens(old: Tensor, sampled: Tensor, lengths: Sequence[int], recipe: LossRecipe) -> Tensor:
    """Return 1 for each token that counts, and 0 for those that `LossRecipe.mask` leaves out; all [n]."""
    if recipe.mask == "none":
        return torch.ones_like(old)
    away = (old - sampled).abs()
    return ((by_response(away, lengths) if recipe.mask == "responses" else away) <= recipe.mask_above).to(old.dtype)


def k3(new: Tensor, reference: Tensor, bound: float = 10.0) -> Tensor:
    """Return each token's estimate of KL(new, reference): exp(d) - d - 1 with d = reference - new, at most `bound`."""
    away = (reference - new).clamp(-_FAR, _FAR)
    return (away.exp() - away - 1.0).clamp(max=bound)


def scale(tokens: int, ranks: int) -> float:
    """Return the factor that turns a sum over local tokens into a share of the global token mean.

    Data-parallel training averages gradients over `ranks`, which is undone here.

    Raises:
        ValueError: a minibatch without response tokens.
    """
    if tokens < 1:
        raise ValueError("a minibatch without response tokens has no loss")
    return ranks / tokens
