"""The loss and its gradient, against computations by hand."""

import math

import pytest
import torch

from memagent.rl.config import LossRecipe
from memagent.rl.loss import ResponseTokens, k3, kept_tokens, scale, token_loss


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def run(new, old, advantage, sampled=None, reference=None, lengths=None, **kwargs):
    new, old, advantage, sampled = tensors(new, old, advantage, sampled or old)
    new.requires_grad_()
    given = ResponseTokens(old, sampled, advantage, lengths or [len(old)], reference)
    summed = token_loss(new, given, LossRecipe(**kwargs))
    summed.objective.backward()
    return summed, new.grad.tolist()


def test_on_policy_the_gradient_is_minus_the_advantage():
    summed, gradient = run([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.25])
    assert summed.objective.item() == pytest.approx(-0.25)
    assert gradient == pytest.approx([-0.5, 0.25])


def test_a_case_by_hand():
    # ratio 1.5 is clipped at 1.2 where the advantage is positive, and 0.5 at 0.8 where it is negative.
    new, old = [math.log(0.75), math.log(0.25)], [math.log(0.5), math.log(0.5)]
    summed, gradient = run(new, old, [1.0, -1.0])
    assert summed.objective.item() == pytest.approx(-1.2 + 0.8)
    assert gradient == [0.0, 0.0]
    assert (summed.counts["clipped_high"], summed.counts["clipped_low"]) == (1, 1)
    # On the other sides nothing is clipped: the policy is pulled back.
    summed, gradient = run(new, old, [-1.0, 1.0])
    assert summed.objective.item() == pytest.approx(1.5 - 0.5)
    assert gradient == pytest.approx([1.5, -0.5])


def test_clip_higher_lets_rare_tokens_rise_further():
    rise = [math.log(0.5 * 1.25)]
    assert run(rise, [math.log(0.5)], [1.0])[1] == [0.0]
    assert run(rise, [math.log(0.5)], [1.0], clip_high=0.28)[1] == pytest.approx([-1.25])


def test_dual_clip_bounds_negative_advantages():
    summed, gradient = run([math.log(0.9)], [math.log(0.1)], [-1.0])
    assert summed.objective.item() == pytest.approx(3.0) and gradient == [0.0]
    assert summed.counts["clipped_dual"] == 1
    summed, _ = run([math.log(0.9)], [math.log(0.1)], [-1.0], dual_clip=0)
    assert summed.objective.item() == pytest.approx(9.0)


def test_importance_weights_are_truncated_and_have_no_gradient():
    old, sampled = [math.log(0.4)] * 2, [math.log(0.1), math.log(0.8)]
    summed, gradient = run(old, old, [1.0, 1.0], sampled)
    assert summed.objective.item() == pytest.approx(-2.0 - 0.5)
    assert gradient == pytest.approx([-2.0, -0.5])
    assert run(old, old, [1.0, 1.0], sampled, tis_cap=0)[1] == pytest.approx([-1.0, -1.0])


def test_kl_is_k3_and_pulls_to_the_reference():
    reference = torch.tensor([math.log(0.5)], dtype=torch.float64)
    new = math.log(0.25)
    summed, gradient = run([new], [new], [0.0], reference=reference, kl_coef=0.1)
    assert summed.counts["kl"] == pytest.approx(2.0 - math.log(2.0) - 1.0)
    assert gradient == pytest.approx([0.1 * (1.0 - 2.0)])
    with pytest.raises(ValueError, match="reference"):
        run([new], [new], [0.0], kl_coef=0.1)


def test_k3_is_never_negative_and_its_mean_is_the_divergence():
    torch.manual_seed(0)
    p, q = torch.softmax(torch.randn(50), 0), torch.softmax(torch.randn(50), 0)
    estimate = k3(p.log(), q.log(), bound=1e9)
    assert (estimate >= 0).all()
    assert (p * estimate).sum().item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-4)


def test_zero_advantages_give_a_zero_gradient():
    assert run([-0.5, -3.0], [-1.0, -1.0], [0.0, 0.0], [-2.0, -0.2])[1] == [0.0, 0.0]


def test_far_apart_log_probabilities_stay_finite():
    summed, gradient = run([-1.0, -2000.0], [-2000.0, -1.0], [1.0, -1.0], [-1.0, -2000.0])
    assert math.isfinite(summed.objective.item()) and all(map(math.isfinite, gradient))


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shapes"):
        given = ResponseTokens(torch.zeros(3), torch.zeros(2), torch.zeros(2), [2])
        token_loss(torch.zeros(2), given, LossRecipe())


def test_gspo_clips_whole_responses_by_the_mean_of_their_ratios():
    old = [math.log(0.5)] * 4
    # Of the first response the ratios 1.5 and 1/1.5 cancel; of the second the mean is 1.5.
    new = [math.log(0.75), math.log(0.5 / 1.5), math.log(0.75), math.log(0.75)]
    summed, gradient = run(new, old, [1.0] * 4, lengths=[2, 2], objective="gspo")
    assert summed.objective.item() == pytest.approx(-1.0 - 1.0 - 1.2 - 1.2)
    assert gradient == pytest.approx([-1.0, -1.0, 0.0, 0.0])
    assert summed.counts["clipped_high"] == 2
    assert run(new, old, [1.0] * 4, lengths=[2, 2])[1] == pytest.approx([0.0, -1 / 1.5, 0.0, 0.0]), "by token: dapo"


def test_cispo_leaves_no_token_out_and_bounds_its_weight():
    new, old = [math.log(0.75), math.log(0.25)], [math.log(0.5), math.log(0.5)]
    _, gradient = run(new, old, [1.0, -1.0], objective="cispo")
    assert gradient == pytest.approx([-1.2, 0.8])
    far = run([math.log(0.9)], [math.log(0.1)], [-1.0], objective="cispo")[1]
    assert far == pytest.approx([1.2]), "no dual clip: the weight is bounded already"


def test_a_mask_leaves_out_what_learner_and_engine_disagree_on():
    old, sampled, lengths = [-1.0, -1.0, -1.0, -1.0], [-1.1, -3.5, -1.2, -1.1], [2, 2]
    recipe = LossRecipe(mask="tokens")
    assert kept_tokens(*tensors(old, sampled), lengths, recipe).tolist() == [1, 0, 1, 1]
    assert kept_tokens(*tensors(old, sampled), lengths, LossRecipe(mask="responses")).tolist() == [0, 0, 1, 1]
    summed, gradient = run(old, old, [1.0] * 4, sampled, lengths=lengths, mask="responses", tis_cap=0)
    assert gradient == [0.0, 0.0, -1.0, -1.0] and summed.counts["masked"] == 2
    reference = torch.tensor([-2.0] * 4, dtype=torch.float64)
    _, gradient = run(old, old, [0.0] * 4, sampled, reference, lengths, mask="responses", kl_coef=0.1)
    assert gradient[:2] == [0.0, 0.0] and gradient[2] != 0.0


def test_the_scale_makes_a_global_token_mean():
    # Two ranks, two micro-batches each: 1, 2, 3 and 4 tokens with a loss of 1 a token.
    tokens = [[1, 2], [3, 4]]
    factor = scale(10, ranks=2)
    averaged = sum(sum(count * factor for count in rank) for rank in tokens) / 2
    assert averaged == pytest.approx(1.0)
    with pytest.raises(ValueError):
        scale(0, 1)
