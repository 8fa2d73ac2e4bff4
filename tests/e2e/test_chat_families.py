"""Tiny random models with the chat templates of the trained families: asked, trained, promoted, asked again."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.layouts import _SIZES
from infra.store.location import Store
from memagent.reading.tokens import load_tokenizer
from pipelines.training.checkpoints import Checkpoints
from tests.e2e.conftest import PROSE, ROOT, Memagent
from tests.support.chat_templates import FAMILIES, tokenizer_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WITHOUT_WINDOWS = ("llama", "qwen2", "qwen3")
"""vLLM would use a window that transformers ignores for these."""
SETS = ("engine.dtype=float32", "engine.max_model_len=1024", "reading.segment_tokens=128", "reading.memory_tokens=32")
GIVEN = [part for item in (*SETS, "reading.answer_tokens=32") for part in ("--set", item)]


def random_model(folder: Path, family: str) -> str:
    """Write a model folder; its end of a text is the tokenizer's."""
    tokenizer_folder(folder, family)
    sizes = {**_SIZES, "vocab_size": 4_608, "hidden_size": 128, "head_dim": 32}
    if family in WITHOUT_WINDOWS:
        del sizes["sliding_window"]
    ends = {"eos_token_id": load_tokenizer(str(folder)).id("</s>"), "bos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    disable_progress_bar()
    config = AutoConfig.for_model(family, **{**sizes, **ends})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    tokenizer_folder(folder, family)  # the generation configuration again
    return str(folder)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_asked_trained_promoted_and_asked_again(family, tmp_path):
    (tmp_path / "model").mkdir()
    model = random_model(tmp_path / "model", family)
    memagent = Memagent(str(tmp_path / "store"))
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text(PROSE * 4)
    question = ["-q", "Who keeps a copy of every report?", "--model", model, *GIVEN]
    first = memagent.json("ask", str(notes), *question)["summary"]
    assert (first["readings"]["total"], first["readings"]["failed"]) == (1, 0)

    data = ["--data", "needles", "--text", str(Path(ROOT) / "docs"), "--model", model, *GIVEN]
    # By rewards, so that engine and learner both read the prompts: they must agree on each token.
    run = memagent.json(
        "train", "--recipe", "smoke", *data, "--set", "stage.max_steps=1", "--set", "stage.validate_with=1"
    )
    checkpoints = Checkpoints(Store(memagent.store), run["run_id"])
    checkpoints.read()
    rows = [row for row in checkpoints.metrics if row["step"] == 1]
    assert 0 < rows[0]["logprob_diff"] < 1e-4

    taught = memagent.json("train", "--recipe", "sft", *data, "--set", "stage.max_steps=2", "--set", "learner.lr=1e-3")
    assert taught["candidate"]
    memagent("policies", "promote", taught["candidate"], "--model", model, "--force")
    (notes / "b.txt").write_text(PROSE * 3)  # what was answered before is read again only if asked to
    again = memagent.json("ask", str(notes), *question)["summary"]
    assert (again["readings"]["read_now"], again["policy_id"]) == (1, taught["candidate"])
