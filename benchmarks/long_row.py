"""The learner on a GPU: rows of 32,768 tokens of a randomly initialised model, LoRA, and all weights by turns.

    python -m benchmarks.long_row --config tests/data/qwen2.5-7b.json [--turns]

One row of separate conversations, and one of 16 responses with a shared section. With ``--turns`` all weights are
trained with the optimiser in main memory (``learner.placement=shared``). Needs a GPU, and room for the model in
``/dev/shm``.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.record import Row, arguments, result, write
from infra.learner.rank import Learner, Rank
from memagent.rl.config import load_recipe
from memagent.rl.packing import Packed, PackedItem, pack, units
from memagent.rl.trajectory import Conversation

TOKENS = 32_768
_RESPONSES = 16


def make(config: Path, folder: Path) -> int:
    """Save a model with random weights in bfloat16; return its parameters."""
    data = json.loads(config.read_text(encoding="utf-8"))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(data.pop("model_type"), **data))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")
    return sum(parameter.numel() for parameter in model.parameters())


def row(vocabulary: int, shared: bool) -> tuple[Packed, int]:
    """Return a row, and the tokens that were sampled for it."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    part = TOKENS // _RESPONSES // 4
    section = ids(10 * part)
    made = [(section if shared else []) + ids(part if shared else 3 * part) for _ in range(_RESPONSES)]
    flat = [PackedItem(Conversation(asked, ids(part), [-11.0] * part, "update"), rng.random() - 0.5) for asked in made]
    return pack(units(flat, 10**9, share=shared)), sum(item.conversation.tokens for item in flat)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--turns", action="store_true")
    arguments(parser)
    given = parser.parse_args()
    layout = ["learner.world_size=1", "learner.gpus=1", "loss.kl_coef=0.0", "rollout.prompts=128"]
    layout += (
        ["learner.placement=shared", "learner.weight_sync=files"]
        if given.turns
        else ["learner.zero_stage=1", "learner.lora_rank=16"]
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        parameters = make(given.config, Path(home))
        learner = Learner(home, load_recipe("reader-7b", layout), Rank(port=29_511))
        vocabulary = json.loads(given.config.read_text(encoding="utf-8"))["vocab_size"]
        for shared in (False, True):
            packed, sampled = row(vocabulary, shared)
            for _ in range(2):  # the first one warms up
                torch.cuda.reset_peak_memory_stats()
                began = time.monotonic()
                learner.learn([packed], len(packed.targets))
                torch.cuda.synchronize()
                seconds = time.monotonic() - began
            column = "one shared section" if shared else "nothing shared"
            peak = torch.cuda.max_memory_allocated() / 2**30
            rows += [
                Row("tokens computed", len(packed.ids), column=column, note=f"of {sampled:,} sampled"),
                Row("a step", round(seconds, 2), "s", column=column),
                Row(
                    "model operations",
                    round(6 * parameters * len(packed.ids) / seconds / 1e12),
                    "TFLOP/s",
                    column=column,
                ),
                Row("peak of tensors", round(peak, 1), "GiB", column=column),
            ]
        learner.offload()
        rows.append(Row("stays for an engine's turn", round(torch.cuda.memory_reserved() / 2**30, 1), "GiB"))
        learner.stop()
    print("\n".join(map(str, rows)))
    write(result("long_row", "The learner on a GPU: rows of 32,768 tokens", rows, given, number_format="bfloat16"))


if __name__ == "__main__":
    main()
