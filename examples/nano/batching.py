"""Training sequences as trees: one segment, and after it several branches that do not see each other.

With the section-first layout a segment is the prefix of every turn on it. A tree holds the segment
once and a branch (question, memory, response) for each turn, which gives several examples for the price
of one segment, exactly: each branch attends to the segment and to itself, and its positions go on
where the segment ends.
"""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from examples.nano.model import Rows

PREFIXES = (0, 64, 256)
"""Lengths that prefixes are padded to. They are few, since each new shape is compiled."""
_VALUE_TOKENS = 3
BRANCHES = (64, 128)
"""Lengths that branches are padded to."""


@dataclass(frozen=True, slots=True)
class Example:
    """One turn: the prompt's ids and the response's, with its end token."""

    prompt: list[int]
    response: list[int]
    kind: str
    """Kind of the turn, by which metrics are kept."""
    value: int = 0
    """Where in the response the value begins, if it is not the whole."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Turns with a common prefix; `branches` are the rest of each turn."""

    prefix: list[int]
    branches: list[Example]


@dataclass(frozen=True, slots=True)
class Batch:
    """Trees as tensors, and the tokens with a loss."""

    rows: Rows
    select: Tensor
    """[n] flat places whose next token has a loss."""
    target: Tensor
    """[n] that next token."""
    weight: Tensor
    """[n] its weight."""
    owner: Tensor
    """[n] the branch whose response it belongs to; -1 for prompt tokens."""
    kinds: list[str]
    """The kind of each branch that `owner` counts."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the loss. `prompt_share` of the prompt tokens have a loss, for language.

    The first response token decides whether to write at all, and the first tokens of a value which of
    several needles is copied; what follows them is easy. They weigh more.
    """

    prompt_share: float = 0.1
    prompt: float = 0.4
    first: float = 3.0


def grow(examples: list[Example], bare: list[int]) -> Tree:
    """Make a tree of turns on one segment.

    The prefix is what their prompts begin with in common with `bare`, the prompt that asks nothing.
    """
    prompts = [example.prompt for example in examples]
    cut = 0
    while cut < len(bare) and all(len(ids) > cut and ids[cut] == bare[cut] for ids in prompts):
        cut += 1
    return Tree(bare[:cut], [replace(e, prompt=e.prompt[cut:]) for e in examples])


def collate(trees: list[Tree], rng: random.Random, weights: Weights, pad: int) -> Batch:
    """Lay trees out as rows.

    Raises:
        ValueError: a prefix or a branch is longer than the longest shape.
    """
    count = max(len(tree.branches) for tree in trees)
    prefix = _fit(max(len(tree.prefix) for tree in trees), PREFIXES)
    branch = _fit(max(len(b.prompt) + len(b.response) for tree in trees for b in tree.branches), BRANCHES)
    flat: list[int] = []
    for tree in trees:
        flat += tree.prefix + [pad] * (prefix - len(tree.prefix))
    marks: list[tuple[int, int, float, int]] = []
    for row, tree in enumerate(trees):
        _mark_prompt(marks, tree.prefix, row * prefix, rng=rng, weights=weights)
    kinds: list[str] = []
    for tree in trees:
        for example in tree.branches:
            ids, base = example.prompt + example.response, len(flat)
            _mark_prompt(marks, example.prompt, base, rng=rng, weights=weights)
            for i in range(max(1, len(example.prompt)), len(ids)):
                offset = i - len(example.prompt)
                hard = offset == 0 or 0 < example.value <= offset < example.value + _VALUE_TOKENS
                weight = weights.first if hard else 1.0
                marks.append((base + i - 1, ids[i], weight, len(kinds)))
            kinds.append(example.kind)
            flat += ids + [pad] * (branch - len(ids))
        flat += [pad] * (branch * (count - len(tree.branches)))
    select, target, weight_of, owner = zip(*marks, strict=True)
    lengths = torch.tensor([len(tree.prefix) for tree in trees])
    return Batch(
        Rows(torch.tensor(flat), lengths, prefix, branches=count, branch=branch),
        select=torch.tensor(select),
        target=torch.tensor(target),
        weight=torch.tensor(weight_of),
        owner=torch.tensor(owner),
        kinds=kinds,
    )


def _mark_prompt(
    marks: list[tuple[int, int, float, int]], ids: list[int], base: int, rng: random.Random, weights: Weights
) -> None:
    if weights.prompt_share <= 0 or len(ids) < 2:
        return
    for i in rng.sample(range(1, len(ids)), int(weights.prompt_share * (len(ids) - 1) + rng.random())):
        marks.append((base + i - 1, ids[i], weights.prompt, -1))


def _fit(length: int, sizes: tuple[int, ...]) -> int:
    fitting = [size for size in sizes if size >= length]
    if not fitting:
        raise ValueError(f"a sequence of {length} tokens is longer than {sizes[-1]}")
    return fitting[0]
