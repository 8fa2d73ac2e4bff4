"""Learner throughput on recorded rollouts: packed with shared prefixes, packed, and padded.

python -m benchmarks.learner --store STORE --run RUN [--steps 3]

The rollouts are those of a run that recorded them (``--set stage.record=true``), with their natural mix of lengths. All
three do the same forward and backward pass in float32 with the same token budget per micro-batch; tokens per second
count the sampled tokens, without padding and shared prefixes.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F

from benchmarks.record import Row, arguments, result, write
from infra.store.location import Store
from memagent.nano import bundled
from memagent.rl.model import load_model
from memagent.rl.packing import Packed, PackedItem, balance, items, pack, units
from memagent.rl.trajectory import with_advantages
from pipelines.training.checkpoints import Checkpoints

_T = TypeVar("_T")


def packed_rows(flat: Sequence[PackedItem], budget: int, share: bool) -> list[Packed]:
    chunks = units(flat, budget, share=share)
    (bins,) = balance([unit.tokens for unit in chunks], 1, budget)
    return [pack([chunks[i] for i in bin_]) for bin_ in bins]


def run_packed(model: torch.nn.Module, row: Packed) -> None:
    new, _ = model(torch.tensor(row.ids), torch.tensor(row.positions), row.blocks, torch.tensor(row.targets))
    (-(new * torch.tensor(row.advantages)).sum()).backward()


def padded_batches(flat: Sequence[PackedItem], budget: int) -> list[list[PackedItem]]:
    """Fill batches in random order up to the budget, padding to the longest conversation included."""
    order = list(flat)
    random.Random(0).shuffle(order)
    batches: list[list[PackedItem]] = [[]]
    for item in order:
        longest = max([item.conversation.tokens, *(other.conversation.tokens for other in batches[-1])])
        if batches[-1] and longest * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(item)
    return batches


def run_padded(model: torch.nn.Module, batch: list[PackedItem]) -> None:
    longest = max(item.conversation.tokens for item in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    seen, weight = torch.zeros_like(ids), torch.zeros(len(batch), longest)
    for i, item in enumerate(batch):
        conversation = item.conversation
        ids[i, : conversation.tokens] = torch.tensor(conversation.prompt_ids + conversation.response_ids)
        seen[i, : conversation.tokens] = 1
        weight[i, len(conversation.prompt_ids) : conversation.tokens] = item.advantage
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1]
    chosen = F.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.autograd.backward(-(chosen * weight[:, 1:]).sum())


def timed(work: Callable[[_T], None], items: Iterable[_T]) -> float:
    began = time.monotonic()
    for item in items:
        work(item)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--model", type=Path, default=bundled())
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8192)
    arguments(parser)
    given = parser.parse_args()
    from transformers import AutoModelForCausalLM

    checkpoints = Checkpoints(Store(given.store), given.run)
    plain = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32, attn_implementation="sdpa").train()
    model = load_model(given.model).train()
    spent = dict.fromkeys(("packed, shared prefixes", "packed", "padded"), 0.0)
    total = longest = conversations = 0
    for step in range(1, given.steps + 1):
        groups = [with_advantages(group, "mean") for group in checkpoints.recorded(step)[0]]
        flat = items([trajectory for group in groups for trajectory in group.trajectories])
        total += sum(item.conversation.tokens for item in flat)
        longest = max(longest, *(item.conversation.tokens for item in flat))
        conversations += len(flat)
        for share in (True, False):
            name = "packed, shared prefixes" if share else "packed"
            packed = packed_rows(flat, given.budget, share)
            spent[name] += timed(lambda row: run_packed(model, row), packed)
            model.zero_grad()
        batches = padded_batches(flat, given.budget)
        spent["padded"] += timed(lambda batch: run_padded(plain, batch), batches)
        plain.zero_grad()
    rates = {name: round(total / seconds) for name, seconds in spent.items()}
    about = {"conversations": conversations, "tokens": total, "mean": total // conversations, "longest": longest}
    print(json.dumps({**about, "tokens_per_second": rates}, indent=1))
    note = f"{about['mean']} tokens in the mean, {longest} at most"
    rows = [Row(name, rate, "tokens a second", n=conversations, note=note) for name, rate in rates.items()]
    write(result("learner", "Learner: tokens a second", rows, given, number_format="float32"))


if __name__ == "__main__":
    main()
