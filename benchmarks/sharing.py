"""What sharing prefixes and packing leave of the actor update: tokens counted at the paper's sizes, seconds measured.

    python -m benchmarks.sharing [--groups 8] [--timed-groups 2]

Counted: groups of 16 rollouts over 8 segments of 5,000 tokens, as in MemAgent's 7B run (arXiv 2507.02259, section 4.1),
with prompts of the template `plain` within ChatML; memories and responses have 256 to 1,024 tokens, the limit. The rows
are made by the learner's own packing. Measured: the same at a quarter of the lengths, forward and backward pass of the
bundled reader in float32 on one thread, by the processor's time, so that what else runs does not count. Tokens per
second count the sampled tokens, without padding.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from tokenizers import Tokenizer as HFTokenizer

from benchmarks.learner import packed_rows, padded_batches, run_packed, run_padded
from benchmarks.record import Row, arguments, result, write
from memagent.nano import bundled
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.tokens import Tokenizer
from memagent.rl.model import load_model
from memagent.rl.packing import PackedItem
from memagent.rl.trajectory import Conversation

_T = TypeVar("_T")
ROLLOUTS, SEGMENTS = 16, 8
SEGMENT, LIMIT = 5_000, 1_024
BUDGET = 32_768
_UPDATE_SECONDS, _STEP_SECONDS = 2_100, 2_400
"""Of a step of the authors' 7B run on 32 H100: the actor update, and all of it."""


def chatml(layout: str) -> Prompts:
    """Compile the template `plain` within ChatML, for the bundled reader's tokenizer with its control tokens."""
    tokenizer = HFTokenizer.from_file(str(bundled() / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    frame = {"before": "<|im_start|>user\n", "after": "<|im_end|>\n<|im_start|>assistant\n", "end": "<|im_end|>"}
    wording = replace(load_template("plain"), chat=False, **frame)  # type: ignore[arg-type]
    return Prompts(wording, Tokenizer(tokenizer.to_str()), layout)  # type: ignore[arg-type]


def group(prompts: Prompts, number: int, scale: int = 1) -> list[PackedItem]:
    """Make the conversations of a group of rollouts; lengths are divided by `scale`."""
    rng = random.Random(number)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(100, 1_000) for _ in range(rng.randint(low // scale, high // scale))]

    question = ids(24, 40)
    segments = [ids(SEGMENT, SEGMENT) for _ in range(SEGMENTS)]
    items = []
    for rollout in range(ROLLOUTS):
        memory = prompts.no_memory
        for segment in segments:
            response = ids(LIMIT // 4, LIMIT)
            items.append(_item(prompts.update(question, memory, segment), response, rollout))
            memory = response
        items.append(_item(prompts.answer(question, memory), ids(LIMIT // 4, LIMIT), rollout))
    return items


def _item(prompt: list[int], response: list[int], rollout: int) -> PackedItem:
    conversation = Conversation(prompt, response, [-1.0] * len(response), "update")
    return PackedItem(conversation, 1.0 if rollout % 2 else -1.0)


def count(layout: str, groups: int) -> list[Row]:
    """Count the tokens of an update, as sampled, padded and packed."""
    prompts = chatml(layout)
    sampled = padded = computed = 0
    for number in range(groups):
        items = group(prompts, number)
        sampled += sum(item.conversation.tokens for item in items)
        batches = padded_batches(items, BUDGET)
        padded += sum(len(batch) * max(item.conversation.tokens for item in batch) for batch in batches)
        computed += sum(len(row.ids) for row in packed_rows(items, BUDGET, share=True))
    left = computed / sampled
    rest = _STEP_SECONDS - _UPDATE_SECONDS
    return [
        Row("tokens as sampled, in millions", round(sampled / 1e6, 2), column=layout, n=groups),
        Row("padded", round(padded / sampled, 3), "times as many", column=layout),
        Row("packed, shared prefixes", round(left, 3), "of them", column=layout),
        Row(
            "a step of 2,400 s would take",
            round(rest + left * _UPDATE_SECONDS),
            "s",
            column=layout,
            note="calculated: the update's 2,100 s by tokens computed, all else as it was",
        ),
    ]


def measure(groups: int, scale: int = 4) -> list[Row]:
    """Time the learner's passes over groups with shared prefixes, packed, and padded."""
    torch.set_num_threads(1)
    from transformers import AutoModelForCausalLM

    model = load_model(bundled()).train()
    plain = AutoModelForCausalLM.from_pretrained(bundled(), dtype=torch.float32, attn_implementation="sdpa").train()
    prompts, budget = chatml("section-first"), BUDGET // scale
    vocabulary = int(plain.config.vocab_size)
    seconds = dict.fromkeys(("packed, shared prefixes", "packed", "padded"), 0.0)
    tokens = 0
    for number in range(groups):
        items = [_known(item, vocabulary) for item in group(prompts, number, scale)]
        tokens += sum(item.conversation.tokens for item in items)
        for name, share in (("packed, shared prefixes", True), ("packed", False)):
            seconds[name] += spent(lambda row: run_packed(model, row), packed_rows(items, budget, share))
            model.zero_grad()
        seconds["padded"] += spent(lambda batch: run_padded(plain, batch), padded_batches(items, budget))
        plain.zero_grad()
    rates = {name: round(tokens / value) for name, value in seconds.items()}
    print(json.dumps(rates), flush=True)
    rows = [Row(name, rate, "tokens a second", column="measured", n=groups) for name, rate in rates.items()]
    times = round(rates["packed, shared prefixes"] / rates["padded"], 2)
    return [*rows, Row("shared against padded", times, "times", column="measured")]


def spent(work: Callable[[_T], None], batches: Sequence[_T]) -> float:
    """Return the seconds of the processor that some work takes."""
    began = time.process_time()
    for batch in batches:
        work(batch)
    return time.process_time() - began


def _known(item: PackedItem, vocabulary: int) -> PackedItem:
    """Replace ids that the model does not have: ChatML's control tokens."""
    known: Sequence[int] = [token if token < vocabulary else 0 for token in item.conversation.prompt_ids]
    conversation = item.conversation
    return PackedItem(
        Conversation(list(known), conversation.response_ids, conversation.logprobs, "update"), item.advantage
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--timed-groups", type=int, default=2)
    arguments(parser)
    given = parser.parse_args()
    rows = [row for layout in ("question-first", "section-first") for row in count(layout, given.groups)]
    rows += measure(given.timed_groups)
    write(result("sharing", "Actor update: what sharing and packing leave", rows, given, number_format="float32"))


if __name__ == "__main__":
    main()
