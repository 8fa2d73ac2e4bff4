"""Recipes: the shipped ones load, and a wrong one says what is wrong."""

import pytest

from memagent.errors import ConfigError
from memagent.rl.config import SHIPPED, load_recipe


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_load(path):
    assert load_recipe(path.stem) == load_recipe(str(path))


def test_there_are_the_recipes_that_are_documented():
    expected = {"nano-cpu", "reader-7b", "reader-14b", "smoke", "sft"}
    assert {path.stem for path in SHIPPED.glob("*.toml")} == expected


def test_the_papers_values():
    small, large = load_recipe("reader-7b"), load_recipe("reader-14b")
    for recipe in (small, large):
        assert recipe.rollout.group_size == 16 and recipe.rollout.temperature == 1.0
        assert recipe.reading["segment_tokens"] == 5000 and recipe.reading["memory_tokens"] == 1024
        assert recipe.loss.kl_coef == 1e-3 and recipe.loss.baseline == "mean" and recipe.learner.lr == 1e-6
        assert recipe.rollout.prompts // recipe.learner.minibatch_prompts == 16
    assert (small.rollout.prompts, large.rollout.prompts) == (128, 256)
    assert "14B" in large.model


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rollout]\nprompts = 10\n[learner]\nminibatch_prompts = 3", "multiple"),
        ("[rollout]\ngroup_size = 1", "group_size"),
        ("[reward]\nweights = { kindness = 1 }", "kindness"),
        ("[reward]\nweights = {}", "weights"),
        ("[rollout]\nteacher = true\n[loss]\nmask = 'tokens'", r"leave out the keys of \[loss\]"),
        ("speed = 3", "speed"),
        ("[loss]\nkl_coeff = 0.1", r"loss\.kl_coeff: no such key; did you mean kl_coef\?"),
        ("[loss", "recipe"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_recipe(str(path))


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('model = "toy"', encoding="utf-8-sig")
    assert load_recipe(str(path)).model == "toy"


def test_an_unknown_recipe_names_the_shipped_ones():
    with pytest.raises(ConfigError, match="nano-cpu"):
        load_recipe("nano-tpu")


@pytest.mark.parametrize(
    "wrong",
    [
        "learner.weight_sync='broadcast'",
        "learner.weight_sync='adapters'",
        "learner.zero_stage=2",
        "rollout.max_off_policy_steps=1",
    ],
)
def test_what_cannot_take_turns_on_a_gpu_is_refused(wrong):
    fits = ["learner.placement='shared'", "learner.weight_sync='files'"]
    assert load_recipe("reader-7b", fits).learner.placement == "shared"
    with pytest.raises(ConfigError, match=wrong.split("=")[0].replace(".", r"\.")):
        load_recipe("reader-7b", [*fits, wrong])


def test_adapters_are_sent_only_where_there_are_some():
    assert load_recipe("smoke", ["learner.weight_sync=adapters", "learner.lora_rank=8"])
    with pytest.raises(ConfigError, match=r"needs learner\.lora_rank"):
        load_recipe("smoke", ["learner.weight_sync=adapters"])


def test_learning_rates_rise_and_fall_as_scheduled():
    from infra.learner.rank import learning_rate

    def rates(schedule):
        sets = [f"learner.lr_schedule={schedule}", "learner.lr=1.0", "learner.warmup_steps=2", "stage.max_steps=6"]
        recipe = load_recipe("smoke", [*sets, "rollout.prompts=2", "learner.minibatch_prompts=1"])
        return [learning_rate(recipe, step) for step in range(recipe.optimiser_steps + 1)]

    assert rates("constant") == pytest.approx([1 / 3, 2 / 3] + [1.0] * 11)
    assert rates("linear") == pytest.approx([1 / 3, 2 / 3] + [1 - n / 10 for n in range(11)])
    cosine = rates("cosine")
    assert cosine[2] == pytest.approx(1.0) and cosine[7] == pytest.approx(0.5) and cosine[12] == pytest.approx(0.0)
