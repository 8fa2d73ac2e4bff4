"""Plans of trainings on GPUs: what they hold is said part by part, and what does not fit is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memagent.errors import ConfigError
from memagent.rl.config import load_recipe
from memagent.rl.footprint import ModelShape, disk, rank_memory, step_tokens
from pipelines.cli.main import app
from pipelines.training.plan import GPUS, Machines, check_memory, fit, plan

DATA = Path(__file__).parents[1] / "data"
SMALL, LARGE = (ModelShape.of(json.loads((DATA / f"qwen2.5-{size}.json").read_text())) for size in ("7b", "14b"))


def test_the_models_have_the_parameters_that_their_cards_say():
    assert round(SMALL.parameters / 1e9, 2) == 7.62 and round(LARGE.parameters / 1e9, 2) == 14.77
    assert round((SMALL.parameters - 2 * SMALL.embedding) / 1e9, 2) == 6.53


@pytest.mark.parametrize(("name", "shape", "gpus"), [("reader-7b", SMALL, 16), ("reader-14b", LARGE, 32)])
def test_the_shipped_recipes_fit_the_gpus_that_they_ask_for(name, shape, gpus):
    made = plan(load_recipe(name), shape, Machines(gpus))
    assert not made.problems and made.used == gpus
    assert made.step_minutes > 0 and made.tokens.computed < made.tokens.sampled / 4


def test_too_few_gpus_are_refused_and_turns_on_them_proposed():
    recipe = load_recipe("reader-7b")
    assert "wants 16 GPUs" in plan(recipe, SMALL, Machines(8)).problems[0]
    sets, better = fit(recipe, SMALL, Machines(8))
    assert "learner.placement=shared" in sets and better.used == 8 and not better.problems
    again = plan(load_recipe("reader-7b", sets), SMALL, Machines(8))  # they are overrides as they stand
    assert again.shared and not again.problems and again.step_minutes == pytest.approx(better.step_minutes)
    assert [part.name for part in again.host] == [
        "weights for engines",
        "gradients",
        "float32 weights",
        "Adam's moments",
        "reference",
        "an engine's weights",
    ]
    assert "Adam's moments" not in [part.name for part in again.rank], "they are in main memory"


def test_an_engine_leaves_room_for_what_stays_of_a_rank():
    turns = ["learner.placement=shared", "learner.weight_sync=files", "learner.world_size=2", "pool.max_size=2"]
    crowded = plan(load_recipe("reader-7b", turns), SMALL, Machines(2))
    assert any("engine.gpu_memory" in problem for problem in crowded.problems)
    roomy = plan(load_recipe("reader-7b", [*turns, "engine.gpu_memory=0.8"]), SMALL, Machines(2))
    assert not any("engine.gpu_memory" in problem for problem in roomy.problems)
    sets, better = fit(load_recipe("reader-7b"), SMALL, Machines(2)) or ([], None)
    assert better is None or load_recipe("reader-7b", sets), "the loader takes what is proposed"


def test_what_a_rank_cannot_hold_is_refused_with_what_to_change():
    recipe = load_recipe("reader-7b", ["learner.zero_stage=1", "learner.world_size=1"])
    (problem,) = plan(recipe, SMALL, Machines(16)).problems
    assert "Adam's moments" in problem and "learner.zero_stage" in problem
    assert fit(load_recipe("reader-14b"), LARGE, Machines(1)) is None
    assert plan(load_recipe("reader-14b"), LARGE, Machines(32, gpu=GPUS["l40s"])).problems


def test_a_training_that_does_not_fit_the_clusters_gpus_is_not_begun(tmp_path):
    (tmp_path / "config.json").write_text((DATA / "qwen2.5-7b.json").read_text())
    big = load_recipe("reader-7b", ["learner.zero_stage=1"])
    with pytest.raises(ConfigError, match=r"a rank needs .* GiB, and a H100 has 79"):
        check_memory(big, tmp_path, ["H100"])
    check_memory(load_recipe("reader-7b"), tmp_path, ["H100"])
    check_memory(big, tmp_path, ["TPU-V9"])


def test_sharding_lora_and_checkpointing_save_what_they_promise():
    def held(*sets):
        return {part.name: part.bytes for part in rank_memory(SMALL, load_recipe("reader-7b", sets))}

    whole, eighth = held("learner.world_size=1"), held()
    assert whole["Adam's moments"] == 8 * eighth["Adam's moments"] == 8 * SMALL.parameters
    assert held("learner.zero_stage=1")["gradients"] == whole["gradients"] == 4 * SMALL.parameters
    assert held("learner.lora_rank=16")["gradients"] < 0.01 * eighth["gradients"]
    assert held("learner.activation_checkpointing=false")["activations"] > 10 * eighth["activations"]
    assert "reference" not in held("loss.kl_coef=0.0")


def test_a_teachers_training_has_no_engines_and_one_reading_a_group():
    reading = ["reading.segment_tokens=512", "reading.memory_tokens=64", "reading.answer_tokens=64"]
    reading += ["learner.dtype=bfloat16", "learner.zero_stage=3", "learner.activation_checkpointing=true"]
    recipe = load_recipe("sft", [*reading, "learner.minibatch_prompts=8"])
    made = plan(recipe, SMALL, Machines(1, gpu=GPUS["h200"]))
    assert made.used == 1 and not made.engine and not made.host and list(made.minutes) == ["learn"]
    assert made.tokens.conversations == 32 * 9
    sets, better = fit(recipe, SMALL, Machines(8)) or ([], None)
    assert sets == ["learner.world_size=8", "learner.placement=apart"] and better.used == 8 and not better.problems


def test_models_on_disk_have_the_width_of_training():
    def written(*sets):
        return {part.name: part.bytes for part in disk(SMALL, load_recipe("reader-7b", sets))}["models"]

    assert written() == 4 * 2 * SMALL.parameters, "the best, its successor, the last export and the candidate"
    assert written("learner.dtype=float32") == 2 * written()
    assert written("stage.export_every=30") == (3 + 7) * 2 * SMALL.parameters


def test_tokens_of_a_step_are_those_of_its_conversations():
    recipe = load_recipe("reader-7b")
    tokens = step_tokens(recipe, fill=1.0)
    assert tokens.conversations == 128 * 16 * 9
    assert tokens.response == 128 * 16 * (8 * 1024 + 1024)
    unshared = step_tokens(load_recipe("reader-7b", ["learner.share_prefixes=false"]), fill=1.0)
    assert unshared.computed == unshared.sampled == tokens.sampled
    with pytest.raises(ConfigError, match="segment_tokens"):
        step_tokens(load_recipe("nano-cpu"))


def test_the_command_prints_the_plan_and_ends_with_status_1_where_it_does_not_fit():
    command = ["train", "plan", "--model-config", str(DATA / "qwen2.5-7b.json"), "--recipe", "reader-7b"]
    fits = CliRunner().invoke(app, [*command, "--gpus", "16"])
    assert fits.exit_code == 0 and "together" in fits.output and "minutes a step" in fits.output
    small = CliRunner().invoke(app, [*command, "--gpus", "8"])
    assert small.exit_code == 1 and "wants 16 GPUs" in small.output and "learner.placement=shared" in small.output


def test_the_plan_of_the_bundled_reader_needs_no_file_and_no_network():
    made = CliRunner().invoke(app, ["train", "plan", "--recipe", "nano-cpu", "--gpus", "2"])
    assert made.exit_code == 0, made.output
    assert made.output.startswith("nano on 2 x H100") and "4.7 million" in made.output
