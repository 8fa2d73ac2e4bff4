"""Packing: conversations concatenated without padding into rows of about equal work, with shared prefixes only once.

A micro-batch is one flat row of tokens in which conversations do not attend to each other. Every rank has the same
number of micro-batches, which sharded training requires (ZeRO, arXiv 1910.02054).
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memagent.rl.trajectory import Conversation, Trajectory

_LEAST = 32
"""Shortest common prefix that is shared, in tokens."""


@dataclass(frozen=True, slots=True)
class PackedItem:
    """A conversation with the advantage of its response tokens."""

    conversation: Conversation
    advantage: float


@dataclass(frozen=True, slots=True)
class Unit:
    """Conversations that stay in one micro-batch: a single one, or several with a common prefix."""

    items: tuple[PackedItem, ...]
    shared: int = 0
    """Length of the common prefix, in tokens; it is computed once."""

    @property
    def tokens(self) -> int:
        """Number of computed tokens."""
        return self.shared + sum(item.conversation.tokens - self.shared for item in self.items)


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch as flat lists of equal length.

    `targets[i]` is the index of a response token in the row; the model's output at `targets[i] - 1` predicts it."""

    ids: list[int]
    positions: list[int]
    blocks: list[tuple[int, ...]]
    """Attention blocks: ``(n,)`` is a conversation of n tokens; ``(p, a, b, ...)`` are conversations with a common
    prefix of p tokens followed by a, b, ... tokens of their own; each attends to the prefix and to itself.
    """
    targets: list[int]
    logprobs: list[float]
    advantages: list[float]
    lengths: list[int] = field(default_factory=list)
    """Tokens of each response, in the order of `targets`."""


def items(trajectories: Sequence[Trajectory], power: float = 1.0) -> list[PackedItem]:
    """Split trajectories into conversations, each with its trajectory's advantage.

    A trajectory weighs as much in the token mean as its response tokens to the `power`: 1 as many as it has, 0 as any
    other (its advantage is scaled; the KL term stays a token mean).
    """
    lengths = [trajectory.response_tokens for trajectory in trajectories]
    spread = sum(length**power for length in lengths if length)
    scales = [sum(lengths) * length**power / (spread * length) if length else 0.0 for length in lengths]
    return [
        PackedItem(conversation, trajectory.advantage * scale)
        for trajectory, scale in zip(trajectories, scales, strict=True)
        for conversation in trajectory.conversations
        if conversation.response_ids
    ]


def gradient_shares(trajectories: Sequence[Trajectory], flat: Sequence[PackedItem]) -> dict[int, float]:
    """Return the share of a minibatch's policy gradient by the number of a trajectory's conversations.

    What is summed is the size of the advantage of each response token; `flat` are the trajectories' `items`.
    """
    parts: dict[int, float] = defaultdict(float)
    owners = [len(one.conversations) for one in trajectories for said in one.conversations if said.response_ids]
    for number, item in zip(owners, flat, strict=True):
        parts[number] += abs(item.advantage) * len(item.conversation.response_ids)
    total = sum(parts.values())
    return {number: parts[number] / total for number in sorted(parts)} if total else {}


def units(flat: Sequence[PackedItem], budget: int, *, share: bool = True) -> list[Unit]:
    """Group conversations with a common prefix, as a group's rollouts have with layout section-first.

    The prefix is computed once, and its gradient is the sum over all conversations; the result is the same (prefix
    grouping, as in verl's PrefixGrouper). All conversations begin with the template's first tokens, so groups are
    chosen by how many tokens they save, not by a common beginning alone. A unit holds at most `budget` tokens, or one
    conversation that alone is longer; the order of the conversations may change.
    """
    if not share or not flat:
        return [Unit((item,)) for item in flat]
    ordered = sorted(flat, key=lambda item: item.conversation.prompt_ids)
    prompts = [np.asarray(item.conversation.prompt_ids) for item in ordered]
    common = [_common(one, other) for one, other in pairwise(prompts)]
    made: list[Unit] = []
    for group in _groups(common):
        shared = min(common[group.start : group.stop - 1], default=0)
        chunk: list[PackedItem] = []
        for index in group:
            item = ordered[index]
            if chunk and Unit((*chunk, item), shared).tokens > budget:
                made.append(_unit(chunk))
                chunk = []
            chunk.append(item)
        made.append(_unit(chunk))
    return made


def _groups(common: Sequence[int]) -> list[range]:
    """Cut sorted prompts into groups of neighbours such that their common prefixes save the most tokens.

    `common` has the length of the common prefix of each prompt and the next one.
    """

    def best(first: int, stop: int) -> tuple[int, list[range]]:
        if stop - first == 1:
            return 0, [range(first, stop)]
        depth = min(common[first : stop - 1])
        cuts = [first, *(i + 1 for i in range(first, stop - 1) if common[i] == depth), stop]
        parts = [best(low, high) for low, high in pairwise(cuts)]
        saved = sum(part[0] for part in parts)
        whole = (stop - first - 1) * depth if depth >= _LEAST else 0
        if whole > saved:
            return whole, [range(first, stop)]
        return saved, [group for part in parts for group in part[1]]

    return best(0, len(common) + 1)[1]


def _unit(together: Sequence[PackedItem]) -> Unit:
    prompts = [np.asarray(item.conversation.prompt_ids) for item in together]
    shared = min((_common(one, other) for one, other in pairwise(prompts)), default=0)
    return Unit(tuple(together), shared)


def _common(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return the length of the common prefix, without its last token, which predicts the first response token."""
    most = min(len(one), len(other))
    differ = one[:most] != other[:most]
    return min(int(differ.argmax()) if differ.any() else most, most - 1)


def balance(lengths: Sequence[int], ranks: int, budget: int) -> list[list[list[int]]]:
    """Distribute conversations: the same number of micro-batches for each rank, each a list of indices.

    A micro-batch holds at most `budget` tokens, or one conversation that alone is longer. The longest
    go first, each to the emptiest bin. Bins may be empty where there are fewer conversations than ranks.

    Raises:
        ValueError: no rank, or no budget.
    """
    if ranks < 1 or budget < 1:
        raise ValueError(f"packing needs a rank and a budget, not {ranks} and {budget}")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = ranks * max(1, -(-sum(min(length, budget) for length in lengths) // (budget * ranks)))
    while True:
        bins = _fill(lengths, order, count)
        if all(len(bin_) <= 1 or sum(lengths[i] for i in bin_) <= budget for bin_ in bins):
            break
        count += ranks
    # Sorted by size: micro-batches that run at the same time on different ranks are about equal.
    bins.sort(key=lambda bin_: -sum(lengths[i] for i in bin_))
    return [bins[rank::ranks] for rank in range(ranks)]


def _fill(lengths: Sequence[int], order: Sequence[int], count: int) -> list[list[int]]:
    heap = [(0, i) for i in range(count)]
    bins: list[list[int]] = [[] for _ in range(count)]
    for i in order:
        load, bin_ = heapq.heappop(heap)
        bins[bin_].append(i)
        heapq.heappush(heap, (load + lengths[i], bin_))
    return bins


def pack(chosen: Sequence[Unit]) -> Packed:
    """Concatenate conversations, with shared prefixes only once."""
    row = Packed([], [], [], targets=[], logprobs=[], advantages=[])
    for unit in chosen:
        shared = unit.shared
        row.ids.extend(unit.items[0].conversation.prompt_ids[:shared])
        row.positions.extend(range(shared))
        for item in unit.items:
            conversation = item.conversation
            begin = len(row.ids) + len(conversation.prompt_ids) - shared
            row.ids.extend(conversation.prompt_ids[shared:] + conversation.response_ids)
            row.positions.extend(range(shared, conversation.tokens))
            row.targets.extend(range(begin, begin + len(conversation.response_ids)))
            row.logprobs.extend(conversation.logprobs)
            row.advantages.extend([item.advantage] * len(conversation.response_ids))
            row.lengths.append(len(conversation.response_ids))
        rest = [item.conversation.tokens - shared for item in unit.items]
        row.blocks.append((shared, *rest) if shared else (rest[0],))
    return row
