"""Packing: conversations laid end to end, without padding, in rows of about equal work; what they share, once.

A micro-batch is one flat row of tokens in which conversations do not attend to each other. Every rank
has the same number of micro-batches, as sharded optimisers need it (ZeRO, arXiv 1910.02054).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memagent.rl.trajectory import Conversation, Trajectory

_LEAST = 32
"""Tokens in common that are worth sharing."""


@dataclass(frozen=True, slots=True)
class Item:
    """A conversation, and what its trajectory earned."""

    conversation: Conversation
    advantage: float


@dataclass(frozen=True, slots=True)
class Unit:
    """Conversations that go into one micro-batch together: one, or several whose prompts begin alike."""

    items: tuple[Item, ...]
    shared: int = 0
    """Tokens that the prompts begin with in common; they are computed once."""

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return self.shared + sum(item.conversation.tokens - self.shared for item in self.items)


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch as flat lists of equal length.

    A token's target is the token after it: `targets[i]` is the row's place of a response token, and the
    model's output at `targets[i] - 1` predicts it.
    """

    ids: list[int]
    positions: list[int]
    blocks: list[tuple[int, ...]]
    """What attends to what: ``(n,)`` is a conversation of n tokens; ``(p, a, b, ...)`` are conversations that share
    their first p tokens and go on for a, b, ... tokens, each seeing the shared ones and itself."""
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


def units(flat: Sequence[Item], budget: int, *, share: bool = True) -> list[Unit]:
    """Put conversations together whose prompts begin alike, as those of a group's rollouts do where the section comes
    first: shared tokens are computed once, and their gradient is the sum over all who share them.

    Nothing of the arithmetic changes (prefix grouping, as in verl's PrefixGrouper). A unit holds at most `budget`
    tokens, or one conversation that alone is longer; the order of the conversations may change.
    """
    if not share:
        return [Unit((item,)) for item in flat]
    alike: dict[tuple[int, ...], list[Item]] = {}
    for item in flat:
        alike.setdefault(tuple(item.conversation.prompt_ids[:_LEAST]), []).append(item)
    made = []
    for together in alike.values():
        shared = _common([item.conversation.prompt_ids for item in together])
        if len(together) < 2 or shared < _LEAST:
            made += [Unit((item,)) for item in together]
            continue
        held: list[Item] = []
        for item in together:
            if held and Unit((*held, item), shared).tokens > budget:
                made.append(Unit(tuple(held), shared if len(held) > 1 else 0))
                held = []
            held.append(item)
        made.append(Unit(tuple(held), shared if len(held) > 1 else 0))
    return made


def _common(prompts: Sequence[list[int]]) -> int:
    """Return how many tokens all begin with, their last one apart: it predicts the first of the response."""
    first, last = min(prompts), max(prompts)
    most = min(len(prompt) for prompt in prompts) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)


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


def pack(chosen: Sequence[Unit]) -> Packed:
    """Lay conversations end to end, what they share once."""
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
        rest = [item.conversation.tokens - shared for item in unit.items]
        row.blocks.append((shared, *rest) if shared else (rest[0],))
    return row
