"""Supervised training of memagent-nano: one loop over its data, resumable at any moment."""

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from examples.nano.batching import Batch, Tree, Weights, collate
from examples.nano.contract_data import ContractData
from examples.nano.model import Qwen2, Shape
from examples.nano.needle_data import CopyData, NeedleData, RecallData, Turns
from examples.nano.schedule import LEVELS, Optimiser, Plan, Progress
from examples.nano.tokenizer import train_vocabulary
from infra.engines.cpu_format import format_speed
from memagent.errors import UsageError
from memagent.evaluation.contracts import Contract, load_contracts, split
from memagent.evaluation.needles import Kind
from memagent.evaluation.texts import load_texts
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.tokens import Tokenizer

_CHECKPOINT_MINUTES = 2.0
_REPORT_STEPS = 20


@dataclass(frozen=True, slots=True)
class TrainingData:
    """All training data."""

    copies: CopyData
    recalls: RecallData
    needles: NeedleData
    contracts: ContractData | None

    def trees(self, plan: Plan, progress: Progress, rng: random.Random) -> list[Tree]:
        """Draw one batch: copies, answer turns or segments of one topic, of about one length."""
        if progress.step < plan.copy_steps or rng.random() < 0.08:
            return self.recalls.rows(32, 120) if rng.random() < 0.6 else self.copies.rows(64, 60)
        clauses = self.contracts if progress.level >= 1 else None
        topic = rng.random()
        is_contract = clauses is not None and topic < plan.contract_share
        kinds: tuple[Kind, ...] = ("number", "word")
        if not is_contract and progress.level >= 1 and topic > 0.82:
            kinds = ("uuid",)
        if rng.random() < 0.15:
            return clauses.answers(64) if clauses and is_contract else self.needles.answers(kinds, 64)
        size = progress.size(rng)
        if clauses and is_contract:
            return [clauses.tree(LEVELS[-1]) for _ in range(8)]
        if kinds == ("uuid",):
            return [self.needles.tree(kinds, LEVELS[-1]) for _ in range(8)]
        return [self.needles.tree(kinds, size, longest=64) for _ in range(32 if size == LEVELS[0] else 10)]

    def random_states(self) -> list[Any]:
        """Return the states of the random sources."""
        return [part.rng.getstate() for part in self._all()]

    def set_random_states(self, states: list[Any]) -> None:
        """Restore the states of the random sources."""
        for part, state in zip(self._all(), states, strict=True):
            part.rng.setstate(_state(state))

    def _all(self) -> list[CopyData | RecallData | NeedleData | ContractData]:
        return [part for part in (self.copies, self.recalls, self.needles, self.contracts) if part is not None]


class Trainer:
    """A model, its optimiser and its progress, kept in a folder."""

    def __init__(self, model: Qwen2, data: TrainingData, plan: Plan, folder: Path, pad: int, seed: int) -> None:
        self.model = model
        self.progress = Progress()
        self._data = data
        self._plan = plan
        self._folder = folder
        self._pad = pad
        self._rng = random.Random(seed)
        self._optimiser = Optimiser(model, plan.rate)
        self._forward: Callable[..., torch.Tensor] = model
        self._half = format_speed().fastest != "float32"
        folder.mkdir(parents=True, exist_ok=True)

    def compile(self) -> None:
        """Compile the model: takes a minute, and makes every step a third faster."""
        self._forward = torch.compile(self.model, dynamic=False, recompile_limit=32)  # type: ignore[call-overload]

    def run(self, show: Callable[[str], None]) -> None:
        """Train from the checkpoint until the plan's tokens are used up."""
        self.resume()
        progress, plan = self.progress, self._plan
        last, saved = time.monotonic(), progress.minutes
        while progress.tokens < plan.tokens:
            loss = self.advance()
            now = time.monotonic()
            progress.minutes += (now - last) / 60
            last = now
            if progress.step % _REPORT_STEPS == 0:
                self._report(loss, show)
                if progress.grow():
                    show(f"segments of {LEVELS[progress.level]} tokens from now on")
            if progress.minutes - saved > _CHECKPOINT_MINUTES:
                self.save()
                saved = progress.minutes
        self.save()

    def advance(self) -> float:
        """Take one step; return its loss."""
        progress, plan = self.progress, self._plan
        self._optimiser.set_rate(plan.learning_rate(progress.step, progress.tokens))
        batch = collate(self._data.trees(plan, progress, self._rng), self._rng, Weights(), self._pad)
        loss = self._learn(batch)
        progress.step += 1
        progress.examples += len(batch.kinds)
        progress.tokens += batch.rows.ids.numel()
        return loss

    def save(self) -> None:
        """Write a checkpoint; a rename replaces the last one."""
        aside = self._folder / "checkpoint.tmp"
        aside.mkdir(exist_ok=True)
        save_file(self.model.state_dict(), aside / "model.safetensors")
        torch.save(self._optimiser.state_dict(), aside / "optimiser.pt")
        state = {
            "progress": self.progress.state(),
            "rng": self._rng.getstate(),
            "lessons": self._data.random_states(),
        }
        (aside / "state.json").write_text(json.dumps(state), encoding="utf-8")
        final = self._folder / f"checkpoint-{self.progress.step}"
        if not final.exists():
            aside.rename(final)
        for old in _checkpoints(self._folder)[:-2]:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()

    def resume(self) -> bool:
        """Resume from the newest checkpoint, if there is one."""
        newest = newest_checkpoint(self._folder)
        if newest is None:
            return False
        self.model.load_state_dict(load_file(newest / "model.safetensors"))
        self._optimiser.load_state_dict(torch.load(newest / "optimiser.pt", weights_only=True))
        state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
        self.progress = Progress(**state["progress"])
        self._rng.setstate(_state(state["rng"]))
        self._data.set_random_states(state["lessons"])
        return True

    def _learn(self, batch: Batch) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._half):
            states = self._forward(batch.rows)
            logits = self.model.logits(states[batch.select]).float()
        losses = F.cross_entropy(logits, batch.target, reduction="none")
        loss = (losses * batch.weight).sum() / batch.weight.sum()
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        own = batch.owner >= 0
        wrong = torch.zeros(len(batch.kinds))
        wrong.index_add_(0, batch.owner[own], (logits.argmax(-1) != batch.target)[own].float())
        for kind, count in zip(batch.kinds, wrong.tolist(), strict=True):
            self.progress.see(kind, count == 0)
        return loss.item()

    def _report(self, loss: float, show: Callable[[str], None]) -> None:
        progress = self.progress
        right = {kind: round(share, 3) for kind, (share, _) in sorted(progress.right.items())}
        row = {
            "step": progress.step,
            "minutes": round(progress.minutes, 2),
            "examples": progress.examples,
            "tokens": progress.tokens,
            "segment_tokens": LEVELS[progress.level],
            "loss": round(loss, 4),
            "right": right,
        }
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shares = " ".join(f"{kind} {share:.2f}" for kind, share in right.items())
        show(
            f"{progress.tokens / 1e6:.1f}/{self._plan.tokens / 1e6:g}M tokens  {progress.minutes:.1f} min  "
            f"step {progress.step}  "
            f"segments {LEVELS[progress.level]}  loss {loss:.3f}  {shares}"
        )


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a run, or None."""
    checkpoints = _checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def _checkpoints(folder: Path) -> list[Path]:
    checkpoints = [path for path in folder.glob("checkpoint-*") if (path / "state.json").is_file()]
    return sorted(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]))


def _state(value: Any) -> tuple[Any, ...]:
    version, internal, gauss = value
    return (version, tuple(internal), gauss)


_PIECE = 60_000


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """Where training data comes from."""

    texts: Sequence[Path]
    """Files and folders whose text the needles are planted in."""
    contracts: Path | None = None
    """Folder with ``gold.jsonl`` and ``contracts/`` (CUAD); without it, only needles."""


def train(
    folder: Path,
    files: TrainingFiles,
    plan: Plan,
    *,
    seed: int,
    show: Callable[[str], None],
    threads: int = 2,
    start: Path | None = None,
) -> Trainer:
    """Train in `folder` until the plan's tokens are used up; resume from its newest checkpoint.

    Args:
        folder: of the run: checkpoints, ``metrics.jsonl`` and the tokenizer.
        files: where the training data comes from.
        plan: length, rate and curriculum.
        seed: decides weights, order and examples.
        show: receives a line of progress every few steps.
        threads: cores to use.
        start: model folder whose weights and tokenizer a new run begins with; by default random weights.

    Raises:
        UsageError: `start` is no model folder of this architecture.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    training: list[Contract] = split(load_contracts(files.contracts))[0] if files.contracts else []
    corpus = load_texts(files.texts)
    if start is not None and not (folder / "tokenizer.json").is_file():
        source = _file(start, "tokenizer.json")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "tokenizer.json")
    tokenizer = _tokenizer(folder, corpus, training, seed)
    prompts = Prompts(load_template("nano"), tokenizer, "section-first", gate=True)
    clauses = [c.text[i : i + _PIECE] for c in training for i in range(0, len(c.text), _PIECE)]
    turns = Turns(prompts)
    data = TrainingData(
        CopyData(prompts, corpus + clauses, seed),
        RecallData(prompts, corpus + clauses, seed + 4),
        NeedleData(turns, corpus + clauses, seed + 1),
        ContractData(turns, training, corpus, seed + 2) if training else None,
    )
    model = Qwen2(Shape(vocab=tokenizer.vocab_size), seed)
    if start is not None:
        _load(model, _file(start, "model.safetensors"))
    pad = tokenizer.id("<|pad|>")
    trainer = Trainer(model, data, plan, folder=folder, pad=pad or 0, seed=seed + 3)
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
