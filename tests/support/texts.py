"""Filler texts, a tokenizer made for tests, and readings of texts in memory."""

import asyncio
import json
import random
from collections.abc import Sequence

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from memagent.config import ReadingConfig
from memagent.reading.conversations import ReadingSpec
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer

CONTROL = ["<|segment|>", "<|question|>", "<|memory|>", "<|update|>", "<|answer|>", "<|same|>", "<|none|>", "<|end|>"]


def toy_tokenizer() -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([filler(random.Random(1), 400)], trainer)
    return tokenizer


def tokenizer_with(added: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with more control tokens, none of them special: as Qwen's has ``</think>``."""
    spec = json.loads(toy_tokenizer().to_str())
    first = 1 + max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    known = {token["content"] for token in spec["added_tokens"]}
    for number, content in enumerate(added):
        if content not in known:
            spec["added_tokens"].append({"id": first + number, "content": content, "special": False, **flags})
    return Tokenizer(json.dumps(spec))


def filler(rng: random.Random, words: int) -> str:
    vocabulary = "the of and to in report shall party term notice section payment service schedule agreement".split()
    text = []
    while len(text) < words:
        text.append(" ".join(rng.choice(vocabulary) for _ in range(rng.randint(4, 12))).capitalize() + ".")
        words -= 8
    return " ".join(text)


def make_scheme(tokenizer: Tokenizer, **options: object) -> ReadingSpec:
    defaults = {"template": "nano", "layout": "section-first", "gate": True, "segment_tokens": 64}
    config = ReadingConfig(**(defaults | {"memory_tokens": 64, "answer_tokens": 32} | options))
    prompts = Prompts(
        load_template(config.template), tokenizer, config.layout, gate=config.gate, early_exit=config.early_exit
    )
    return ReadingSpec(prompts, config)


class ListStream:
    """A stream of a text that is in memory; counts what was read of it."""

    def __init__(self, text: str, tokenizer: Tokenizer, size: int = 64) -> None:
        self.segments = list(segments("hash", text, tokenizer, size))
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.segments)

    async def read(self, start: int, stop: int):
        for segment in self.segments[start:stop]:
            self.reads.append(segment.index)
            await asyncio.sleep(0)
            yield segment
