"""Fixtures that every kind of test uses."""

import asyncio
import json
import random
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from memagent.config import ReadingConfig
from memagent.conversations import ReadingSpec
from memagent.prompts import Prompts, load_template
from memagent.segmenting import segments
from memagent.tokens import Tokenizer

# How long an example takes says what else the machine does.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

GROUPS = {"served": "prefect", "cluster": "prefect", "ray_in_process": "ray"}
"""Fixtures of `integration/` that take long to start, and the group of the files that name them."""
OTHER_HALF = {"test_evaluate.py", "test_ingest_changes.py", "test_ingest_hostile.py", "test_training.py"}
"""Files of the group "ray" that are one of their own: together they would be the last to end by minutes."""
TESTS = Path(__file__).parent
LONGEST_FIRST = ("integration", "e2e", "unit")
CONTROL = ["<|segment|>", "<|question|>", "<|memory|>", "<|update|>", "<|answer|>", "<|same|>", "<|none|>", "<|end|>"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow_on_s3") and "[s3" in item.name:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(TESTS).parts[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a file's tests to one worker, and to the same one those of all files that share a server or Ray."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.split("::")[0])

    return Sharing(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def group_of(file: Path) -> str:
    words = set(re.findall(r"\w+", file.read_text())) if file.parent.name == "integration" else set()
    group = next((group for fixture, group in GROUPS.items() if fixture in words), str(file))
    return "other ray" if group == "ray" and file.name in OTHER_HALF else group


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


def filler(rng: random.Random, words: int) -> str:
    vocabulary = "the of and to in report shall party term notice section payment service schedule agreement".split()
    text = []
    while len(text) < words:
        text.append(" ".join(rng.choice(vocabulary) for _ in range(rng.randint(4, 12))).capitalize() + ".")
        words -= 8
    return " ".join(text)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(toy_tokenizer().to_str())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without weights: what the scripted engine needs."""
    folder = tmp_path_factory.mktemp("model")
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    defaults = {"template": "nano", "layout": "section-first", "gate": True, "segment_tokens": 64}
    (folder / "reading.json").write_text(json.dumps(defaults | {"memory_tokens": 64, "answer_tokens": 32}))
    return folder


@pytest.fixture
def scheme(tokenizer: Tokenizer) -> ReadingSpec:
    return make_scheme(tokenizer)


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
