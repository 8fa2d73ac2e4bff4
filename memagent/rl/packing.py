"""Packing: conversations laid end to end, without padding, in rows of about equal work.

A micro-batch is one flat row of tokens in which conversations do not attend to each other. Every rank
has the same number of micro-batches, as sharded optimisers need it (ZeRO, arXiv 1910.02054).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memagent.rl.trajectories import Conversation, Trajectory


@dataclass(frozen=True, slots=True)
class Item:
    """A conversation, and what its trajectory earned."""

    conversation: Conversation
    advantage: float


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch as flat lists of equal length.

    `lengths` tells where conversations begin. A token's target is the token after it: `targets[i]` is
    the row's place of a response token, and the model's output at `targets[i] - 1` predicts it.
    """

    ids: list[int]
    positions: list[int]
    lengths: list[int]
    targets: list[int]
    logprobs: list[float]
    advantages: list[float]

    @property
    def response_tokens(self) -> int:
        """Tokens that are trained on."""
        return len(self.targets)


def items(trajectories: Sequence[Trajectory]) -> list[Item]:
    """Take trajectories apart; each conversation keeps its trajectory's advantage."""
    return [
        Item(conversation, trajectory.advantage)
        for trajectory in trajectories
        for conversation in trajectory.conversations
        if conversation.response_ids
    ]


def balance(lengths: Sequence[int], ranks: int, budget: int) -> list[list[list[int]]]:
    """Share conversations out: for each rank the same number of micro-batches, each a list of indices.

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
    # Heaviest together: micro-batches that run at the same time on different ranks weigh about the same.
    bins.sort(key=lambda bin_: -sum(lengths[i] for i in bin_))
    return [bins[rank::ranks] for rank in range(ranks)]


def _fill(lengths: Sequence[int], order: Sequence[int], count: int) -> list[list[int]]:
    import heapq

    heap = [(0, i) for i in range(count)]
    bins: list[list[int]] = [[] for _ in range(count)]
    for i in order:
        load, bin_ = heapq.heappop(heap)
        bins[bin_].append(i)
        heapq.heappush(heap, (load + lengths[i], bin_))
    return bins


def pack(chosen: Sequence[Item]) -> Packed:
    """Lay conversations end to end."""
    ids: list[int] = []
    positions: list[int] = []
    targets: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    for item in chosen:
        conversation = item.conversation
        begin = len(ids) + len(conversation.prompt_ids)
        ids += conversation.prompt_ids + conversation.response_ids
        positions += range(conversation.tokens)
        targets += range(begin, begin + len(conversation.response_ids))
        logprobs += conversation.logprobs
        advantages += [item.advantage] * len(conversation.response_ids)
    return Packed(ids, positions, [item.conversation.tokens for item in chosen], targets, logprobs, advantages)
