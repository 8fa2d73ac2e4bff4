"""From texts and contracts to a trained reader: everything that a supervised run consists of."""

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from memagent.errors import UsageError
from memagent.nano.clauses import ContractLessons
from memagent.nano.lessons import CopyLessons, NeedleLessons, RecallLessons, Turns
from memagent.nano.model import Qwen2, Shape
from memagent.nano.schedule import Plan
from memagent.nano.texts import load_texts
from memagent.nano.training import Lessons, Trainer
from memagent.nano.vocabulary import train_vocabulary
from memagent.prompts import Prompts, load_template
from memagent.tasks.contracts import Contract, load_contracts, split
from memagent.tokens import Tokenizer

_PIECE = 60_000


def warm_up(
    folder: Path,
    texts: Sequence[Path],
    contracts: Path | None,
    plan: Plan,
    seed: int,
    show: Callable[[str], None],
    threads: int = 2,
    start: Path | None = None,
) -> Trainer:
    """Train in `folder` until the plan's tokens are used up, going on from what stands there.

    A new run begins with the weights and the tokenizer of the model folder `start`, if one is given.

    Raises:
        UsageError: `start` is no model folder of this architecture.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    training: list[Contract] = split(load_contracts(contracts))[0] if contracts else []
    corpus = load_texts(texts)
    if start is not None and not (folder / "tokenizer.json").is_file():
        source = _file(start, "tokenizer.json")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "tokenizer.json")
    tokenizer = _tokenizer(folder, corpus, training, seed)
    prompts = Prompts(load_template("nano"), tokenizer, "section-first", gate=True)
    clauses = [c.text[i : i + _PIECE] for c in training for i in range(0, len(c.text), _PIECE)]
    turns = Turns(prompts)
    lessons = Lessons(
        CopyLessons(prompts, corpus + clauses, seed),
        RecallLessons(prompts, corpus + clauses, seed + 4),
        NeedleLessons(turns, corpus + clauses, seed + 1),
        ContractLessons(turns, training, corpus, seed + 2) if training else None,
    )
    model = Qwen2(Shape(vocab=tokenizer.vocab_size), seed)
    if start is not None:
        _load(model, _file(start, "model.safetensors"))
    pad = tokenizer.id("<|pad|>")
    trainer = Trainer(model, lessons, plan, folder, pad or 0, seed + 3)
    trainer.compile()
    trainer.run(show)
    return trainer


def _file(start: Path, name: str) -> Path:
    if not (start / name).is_file():
        raise UsageError(f"{start} is no model folder: it has no {name}")
    return start / name


def _load(model: Qwen2, weights: Path) -> None:
    try:
        model.load_state_dict(load_file(weights))
    except RuntimeError as error:
        raise UsageError(f"{weights} does not fit the reader's architecture: {error}") from error


def _tokenizer(folder: Path, texts: list[str], contracts: list[Contract], seed: int) -> Tokenizer:
    """Return the run's tokenizer; train it where there is none yet."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        mix = [text[:8000] for text in texts] + [contract.text[:30_000] for contract in contracts]
        random.Random(seed).shuffle(mix)
        train_vocabulary(mix).save(str(path))
    return Tokenizer(path.read_text(encoding="utf-8"))
