"""A Hugging Face model without any file of ours, on questions and by a reward of one's own, on a cluster of two nodes:
trained, compared, put to work, and asked.
"""

import json
import os
import random
import shlex
from pathlib import Path

import pytest
import torch
from ray.cluster_utils import Cluster
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.policies import policy
from tests.e2e.conftest import PROSE, ROOT, Memagent
from tests.support.chat_templates import CHATML as CHATML_TEMPLATE
from tests.support.pages import blocks
from tests.support.texts import filler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_engine_is_left")]

STEPS = 12
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
REWARD = """
def score(said):
    # A random model answers no question; that it learns at all is seen in what letters it prefers.
    return sum(letter in "aeiou" for letter in said.answer.lower()) / len(said.answer) if said.answer else 0.0
"""
RECIPE = """
[reading]
segment_tokens = 128
memory_tokens = 16
answer_tokens = 24

[rollout]
prompts = 4
group_size = 8
segments = 2

[reward]
weights = { "own_rewards:score" = 1.0 }

[learner]
minibatch_prompts = 4
lr = 1e-3
warmup_steps = 0
world_size = 2
zero_stage = 2

[engine]
dtype = "float32"
max_model_len = 1024

[pool]
min_size = 2
max_size = 2

[stage]
max_steps = 12
patience = 12
export_every = 2
validate_every = 1
validate_with = 8
"""


def make_model(folder: Path) -> Path:
    """Save a tiny random Qwen2, as transformers does: grouped heads, untied, a tokenizer, nothing of ours."""
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=CHATML, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PROSE, filler(random.Random(1), 2000)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=CHATML[2], pad_token=CHATML[0])
    fast.chat_template = CHATML_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id(CHATML[2]),
        dtype="float32",
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    assert not (folder / "reading.json").exists()
    return folder


def make_questions(path: Path, count: int) -> str:
    rng = random.Random(path.name)
    rows = [
        {
            "question": f"What is the code of room {i}?",
            "documents": [f"{filler(rng, 30)} The code of room {i} is {i + 500}.", filler(rng, 30)],
            "answers": [str(i + 500)],
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes that have the reward's module, and two processors each: an engine and a rank of the learner."""
    (tmp_path / "own_rewards.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([ROOT.as_posix(), str(tmp_path)]))
    options = {"num_cpus": 2, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        cluster.add_node(**options)
        yield cluster.address
    finally:
        cluster.shutdown()


def commands_of_the_page(words: dict[str, str]) -> list[list[str]]:
    """Return the commands of docs/training.md from the audit on, with files and model in place of their names."""
    page = blocks(ROOT / "docs" / "training.md", "")
    (block,) = [code for code in page if code.startswith("memagent train audit --recipe")]
    lines = [shlex.split(line.removeprefix("memagent ")) for line in block.splitlines()]
    return [[words.get(word, word) for word in line] for line in lines]


def test_a_model_of_nobody_we_know_is_trained_promoted_and_asked(tmp_path, nodes):
    """The commands of docs/training.md, "Your model, your data, your reward", as they stand there."""
    model = make_model(tmp_path / "tiny-qwen")
    (tmp_path / "own.toml").write_text(f"model = {json.dumps(str(model))}\n{RECIPE}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text(f"{PROSE}The code of room 7 is 507. {PROSE}")
    words = {"own.toml": str(tmp_path / "own.toml"), "MODEL": str(model), "FOLDER": str(tmp_path / "docs")}
    for name, count in {"train.jsonl": 40, "validation.jsonl": 8, "promotion.jsonl": 6}.items():
        words[name] = make_questions(tmp_path / name, count)
    url, ray = str(tmp_path / "store"), ("--set", f"ray.address={nodes}")
    memagent, store = Memagent(url), Store(url)
    audit, train, exports, listed, promote, ingest, ask = commands_of_the_page(words)

    report = memagent.json(*audit, *ray)
    assert not report["refused"] and "gold-missing" not in report["violating"]
    assert report["warnings"], "a reward of one's own may pay what it likes, and it is said"
    summary = memagent.json(*train, *ray)
    candidate = summary["candidate"]
    assert candidate and summary["steps"] == STEPS
    assert summary["validation"]["best"]["reward"] > summary["validation"]["before"]["reward"]
    kept = [(one["step"], one["kind"]) for one in memagent.json(*exports)]
    assert {(2, "model"), (STEPS, "model")} <= set(kept) and "best" in [kind for _, kind in kept]
    assert candidate in memagent(*listed)
    folder = Path(url) / policy(store, candidate)["path"]
    assert json.loads((folder / "reading.json").read_text())["template"] == "plain"
    before, after = (Qwen2ForCausalLM.from_pretrained(path).lm_head.weight for path in (model, folder))
    assert not torch.equal(before, after), "transformers loads it, and it has learnt"

    promote[promote.index("CANDIDATE")] = candidate
    record = memagent.json(*promote, "--check", "kinds=", *ray, status=1)
    assert record["overall"]["n"] == 6 and record["overall"]["candidate_failed"] == 0, "it answers no question yet"
    memagent("policies", "promote", candidate, "--model", str(model), "--force")
    memagent(*ingest, *ray)
    answered = memagent.json(*ask, *ray)["summary"]["readings"]
    assert (answered["failed"], answered["total"]) == (0, 1)
    (answer,) = Table(store, "answers").read("rooms").to_pylist()
    assert answer["policy_id"] == candidate
