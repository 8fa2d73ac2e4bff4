"""One rank of a DeepSpeed training, on CPU or GPU.

A rank receives packed micro-batches and takes one optimiser step on them. Gradients are a true mean over the response
tokens of the whole minibatch, so the weights do not depend on the number of ranks and micro-batches.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from infra.learner.checkpoint import Snapshot, States, restore, take, write_model
from infra.learner.weights import Entry, Rendezvous, send
from memagent.errors import ConfigError, TrainingError
from memagent.rl.config import Recipe
from memagent.rl.loss import ResponseTokens, scale, token_loss
from memagent.rl.model import PolicyModel, adapt, load_model
from memagent.rl.packing import Packed

_PEFT_NAMES = {"down": "lora_A.weight", "up": "lora_B.weight"}


def write_adapter(factors: dict[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Write low-rank factors (arXiv 2106.09685) into a new folder, under the names that PEFT gives them.

    `factors` have the names of `memagent.rl.model.adapt`: ``LAYER.down`` [rank, in] and ``LAYER.up`` [out, rank].
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors, modules = {}, set()
    for name, tensor in factors.items():
        layer, factor = name.rsplit(".", 1)
        tensors[f"base_model.model.{layer}.{_PEFT_NAMES[factor]}"] = tensor.contiguous()
        modules.add(layer.rpartition(".")[2])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": recipe.model,
        "r": recipe.learner.lora_rank,
        "lora_alpha": recipe.learner.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)  # safetensors makes the file private to its owner


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank, world size and rendezvous of a process."""

    index: int = 0
    world: int = 1
    address: str = "127.0.0.1"
    port: int = 29500


class Learner:
    """One rank. All ranks call the same methods in the same order."""

    def __init__(self, model: str, recipe: Recipe, rank: Rank) -> None:
        """Load the model folder `model` and shard it as the recipe says.

        Raises:
            UsageError: the model cannot be loaded.
            ConfigError: GPUs are asked for, and there are none.
        """
        self._folder = Path(model)
        self._recipe = recipe
        self._rank = rank
        self._cuda = recipe.learner.gpus > 0
        if self._cuda and not torch.cuda.is_available():
            raise ConfigError(
                f"learner.gpus is {recipe.learner.gpus:g}, and PyTorch finds no GPU here: install its CUDA build, or "
                "set learner.gpus=0 to train on the CPU"
            )
        self._device = torch.device("cuda", 0) if self._cuda else torch.device("cpu")
        self.steps = 0
        """Optimiser steps taken so far."""
        self._engine = self._start()
        self._states = States(self._engine, self._device)
        self._reference: PolicyModel | None = None
        if recipe.loss.kl_coef:
            self._reference = load_model(self._folder, self._dtype).to(self._device).eval().requires_grad_(False)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._recipe.learner.dtype == "bfloat16" else torch.float32

    def score(self, rows: Sequence[Packed]) -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        with torch.no_grad():
            return [self._forward(self._engine, row)[0].tolist() for row in rows]

    def learn(self, rows: Sequence[Packed], tokens: int, old: Sequence[list[float]] | None = None) -> dict[str, float]:
        """Take one optimiser step on this rank's share of a minibatch.

        Args:
            rows: micro-batches, as many on every rank; one may be empty.
            tokens: divisor of the sum over tokens: the response tokens of the whole minibatch, or Dr. GRPO's constant.
            old: log-probabilities at the beginning of the step, by row; None if the weights have not changed since.

        Returns:
            Sums over this rank's tokens (`memagent.rl.loss.Summed.counts`), their entropy, the gradient's
            norm before clipping and the learning rate.

        Raises:
            TrainingError: the loss is not finite. The weights are unchanged; continue with `load`, since accumulated
            gradients remain.
        """
        factor = scale(tokens, self._rank.world)
        sums: dict[str, float] = {}
        finite = True
        for i, row in enumerate(rows):
            loss, counts = self._loss(row, old[i] if old is not None else None)
            finite = finite and math.isfinite(loss.item())
            self._engine.backward(loss * factor, scale_wrt_gas=False)
            for name, value in counts.items():
                sums[name] = sums.get(name, 0.0) + value
        if not self._agreed(finite):
            self._engine.zero_grad()
            raise TrainingError("the loss is NaN or infinite; the weights are unchanged by this minibatch")
        lr = self._set_lr()
        self._engine.step()
        self.steps += 1
        return {**sums, "gradient_norm": float(self._engine.get_global_grad_norm()), "lr": lr}

    def export(self, folder: Path) -> None:
        """Write the weights as a model folder, in the data type of training. Rank 0 writes.

        Engines sample with this folder, and it is published: rounded further, small changes of weights would be lost.
        """
        if weights := self.merged(self._dtype):
            write_model(weights, self._folder, folder)

    def merged(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the whole weights by name, LoRA's changes merged in, on rank 0; nothing on the others."""
        whole, writes = self._states.model_weights(), self._rank.index == 0
        return {name: weight.to(dtype).contiguous().cpu() for name, weight in whole if writes}

    def export_adapter(self, folder: Path) -> None:
        """Write the low-rank factors, which are all that is trained, as PEFT loads them. Rank 0 writes."""
        named = self._states.parameters()
        factors = {name: self._states.weight(parameter).float().cpu() for name, parameter in named}
        if self._rank.index == 0:
            write_adapter(factors, self._recipe, folder)

    def layout(self) -> tuple[Entry, ...]:
        """Return the layout of what `send` broadcasts: the model's weights in the data type of training."""
        dtype = str(self._dtype).removeprefix("torch.")
        return tuple((name, shape, dtype) for name, shape in self._states.layout())

    def send(self, meeting: Rendezvous) -> None:
        """Broadcast the weights to the engines at a rendezvous. Rank 0 sends; every rank takes part.

        Raises:
            TrainingError: an engine did not come, or was lost.
        """
        weights = self._states.model_weights()
        if self._rank.index != 0:
            for _ in weights:
                pass
            return
        try:
            send(meeting, weights, self._device)
        except RuntimeError as error:
            raise TrainingError(f"the weights did not reach all engines: {error}") from error

    def snapshot(self) -> Snapshot:
        """Copy this rank's share of weights and optimiser state to main memory. All ranks call it together."""
        return take(self._states, self._rank.index, self._rank.world, self.steps)

    def load(self, folder: Path) -> None:
        """Resume from a checkpoint of which `folder` has at least this rank's files (`infra.learner.checkpoint`).

        Raises:
            TrainingError: the checkpoint is incomplete or of another model.
        """
        self.steps = restore(
            self._states, folder, rank=self._rank.index, world=self._rank.world, prepare=self._make_states
        )

    def offload(self) -> None:
        """Leave the GPU to an engine, but for the shard of the model; the optimiser is in main memory all the time."""
        if self._reference is not None:
            self._reference.to("cpu")
        if self._cuda:
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undo `offload`."""
        if self._reference is not None:
            self._reference.to(self._device)

    def stop(self) -> None:
        """Leave the process group once all ranks are here: destroying it while in use aborts the process."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    def _start(self) -> Any:
        rank, learner = self._rank, self._recipe.learner
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if self._cuda else "cpu")
        os.environ.update(
            RANK=str(rank.index),
            LOCAL_RANK="0",
            WORLD_SIZE=str(rank.world),
            MASTER_ADDR=rank.address,
            MASTER_PORT=str(rank.port),
        )
        import deepspeed

        # On CPUs it would compile its own collective with the C++ compiler, which takes a minute and saves little
        # between a few ranks of one machine.
        deepspeed.ops.__compatible_ops__ = {}
        torch.manual_seed(self._recipe.stage.seed)
        deepspeed.init_distributed("nccl" if self._cuda else "gloo", verbose=False)
        settings = _settings(self._recipe, rank.world)
        model = load_model(self._folder, self._dtype, checkpointing=learner.activation_checkpointing)
        if learner.lora_rank:
            adapt(model.model, learner.lora_rank, learner.lora_alpha)
        model.train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return deepspeed.initialize(model=model, model_parameters=trained, config=settings)[0]

    def _forward(self, model: Any, row: Packed) -> tuple[Tensor, Tensor]:
        row = row if row.ids else _NOTHING
        place = {"device": self._device}
        out: tuple[Tensor, Tensor] = model(
            torch.tensor(row.ids, **place),  # type: ignore[arg-type]
            torch.tensor(row.positions, **place),  # type: ignore[arg-type]
            row.blocks,
            targets=torch.tensor(row.targets, **place),  # type: ignore[arg-type]
            temperature=self._recipe.rollout.temperature,
        )
        return out

    def _loss(self, row: Packed, old: list[float] | None) -> tuple[Tensor, dict[str, float]]:
        new, entropy = self._forward(self._engine, row)
        if not row.ids:
            return new.sum() * 0.0, {}  # sharded models need every rank in every pass
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._forward(self._reference, row)[0]
        before = new.detach() if old is None else torch.tensor(old, device=self._device)
        given = ResponseTokens(
            before,
            # No model sampled what the teacher says: without a ratio the objective is the plain log-likelihood.
            sampled=before if self._recipe.rollout.teacher else torch.tensor(row.logprobs, device=self._device),
            advantage=torch.tensor(row.advantages, device=self._device),
            lengths=row.lengths,
            reference=reference,
        )
        summed = token_loss(new, given, self._recipe.loss)
        likelihood = {"nll": -new.detach().sum().item(), "entropy": entropy.sum().item()}
        return summed.objective, {**summed.counts, **likelihood}

    def _make_states(self) -> None:
        """Take an empty step: sharded moments exist only after the first step, and cannot be set before."""
        self._engine.backward(self._forward(self._engine, _NOTHING)[0].sum() * 0.0, scale_wrt_gas=False)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = 0.0
        self._engine.step()

    def _agreed(self, finite: bool) -> bool:
        flag = torch.tensor([0.0 if finite else 1.0], device=self._device)
        if self._rank.world > 1:
            torch.distributed.all_reduce(flag)
        return flag.item() == 0.0

    def _set_lr(self) -> float:
        lr = learning_rate(self._recipe, self.steps)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        return lr


def learning_rate(recipe: Recipe, steps: int) -> float:
    """Return the learning rate of the optimiser step after `steps` of them."""
    learner = recipe.learner
    if steps < learner.warmup_steps:
        return learner.lr * (steps + 1) / (learner.warmup_steps + 1)
    left = 1.0 - (steps - learner.warmup_steps) / max(1, recipe.optimiser_steps - learner.warmup_steps)
    share = {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}
    return learner.lr * max(0.0, share[learner.lr_schedule])


_NOTHING = Packed([0, 0], [0, 1], [(2,)], targets=[1], logprobs=[0.0], advantages=[0.0], lengths=[1])


def _settings(recipe: Recipe, world: int) -> dict[str, Any]:
    learner = recipe.learner
    sharding: dict[str, Any] = {"stage": learner.zero_stage, "overlap_comm": False}
    settings: dict[str, Any] = {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # the number of micro-batches differs from step to step
        "gradient_clipping": learner.gradient_clip,
        "steps_per_print": 10**9,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": learner.lr,
                "betas": list(learner.betas),
                "weight_decay": learner.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_optimization": sharding,
    }
    if learner.placement == "shared":
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": learner.gpus > 0}
        # DeepSpeed's own Adam for CPUs is compiled when it is first used, which takes a compiler on every node.
        settings["zero_force_ds_cpu_optimizer"] = False
    if learner.dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
        # Gradients of many micro-batches are summed: in bfloat16 small ones would be lost.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings
