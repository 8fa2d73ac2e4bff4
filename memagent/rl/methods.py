"""Training methods: what the advantages of a group's conversations are made of.

Multi-Conv DAPO (MemAgent, arXiv 2507.02259) gives the reward of the answer to all conversations of a rollout. The
other methods pay, besides, what the memory did. A recipe names one: ``method.name``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from memagent.registry import Registry
from memagent.rl.reward import Answered, Trace
from memagent.rl.trajectory import Baseline, Group, Trajectory, add_turns, turn_advantages, with_advantages

Memories = Literal["none", "last", "all"]
"""Memories from which the learner scores a rollout's gold answer: none, the last one, or that after each update."""
Likelihoods = Sequence[Sequence[float]]
"""For each rollout of a group and each of its probes (`memagent.rl.trajectory.Trajectory.probes`), the mean
log-probability of a token of the gold answer; the first probe has no memory."""
UNSUPPORTED = 0.5
"""What remains of a utility that the outcome does not support (HiMPO)."""


Assign = Callable[[Group, Baseline, float, Likelihoods], Group]
"""Returns a group, which has rewards, with the advantage of each trajectory, or of each conversation; by the baseline
of rewards, the weight of what the method adds to the answer's reward (``method.weight``), and the likelihoods, which
are empty for a method without `Method.memories`."""


@dataclass(frozen=True, slots=True)
class Method:
    """A training method."""

    assign: Assign
    memories: Memories = "none"
    needs: tuple[str, ...] = ()
    """Keys of the reading that must be on."""
    taught: bool = False
    """The readings are the teacher's: no engine samples."""


def dapo(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Give all conversations of a rollout the advantage of its reward."""
    return with_advantages(group, baseline)


def gru_mem(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Pay the update gate and the exit gate of the reading for being right (GRU-Mem, arXiv 2602.10560).

    From the paper's abstract and its authors' page: two gates in the policy's own words (`reading.gate`,
    `reading.early_exit`), a reward for right updates and one for leaving at the right time, trained end to end beside
    the answer's reward. The size and the place of each is ours, as the paper's formulas could not be read: an update is
    right (1, else 0) if the memory changed where the segment holds evidence and only there, and its advantage is over
    the mean of the group at the same segment; leaving is paid by `exit_reward`, a term of ``reward.weights``.
    """
    turns = turn_advantages([right_updates(trajectory.trace) for trajectory in group.trajectories])
    return add_turns(with_advantages(group, baseline), turns, weight)


def infomem(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Pay a right answer more the likelier the last memory makes the gold answer (InfoMem, arXiv 2606.03329).

    From the paper's abstract: the reward is the gain in the gold answer's log-likelihood per token by the last memory;
    only successful rollouts have it; and it is normalised before it is added to the answer's reward. How it is
    normalised is ours, as the paper's formulas could not be read: the gain is divided by the answer's surprise without
    any memory, which gives 0 to 1 (`removed`) and makes nothing large of a small difference. The likelihoods are the
    learner's.
    """
    pairs = zip(group.trajectories, likelihoods, strict=True)
    return with_advantages(Group(group.sample_id, tuple(_paid(one, scores, weight) for one, scores in pairs)), baseline)


def himpo(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Give each memory update its own advantage, by what it did for the answer (HiMPO, arXiv 2606.16285).

    From the paper's abstract: the local utility of an update is the task's information that can be recovered from the
    memory after it, less that from the memory before it; hindsight bounds it, so that utility which the outcome does
    not support counts less; the resulting advantage is of memory tokens alone, and all else goes by the rollout's
    reward. Ours, as the paper's formulas could not be read: what can be recovered is the share of the gold answer's
    surprise that a memory removes (`removed`); unsupported utility counts half (a gain before a wrong answer, a loss
    before a right one); the baseline is the mean of the group at the same segment; the advantage is added to the
    rollout's.
    """
    pairs = zip(group.trajectories, likelihoods, strict=True)
    turns = turn_advantages([credits_of(scores, trajectory.reward.right) for trajectory, scores in pairs])
    return add_turns(with_advantages(group, baseline), turns, weight)


def sft(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Give every response the advantage 1: of weights that have not changed since, the gradient is that of the tokens'
    likelihood. For the teacher's readings (`memagent.rl.teacher`), which are all right.
    """
    return Group(group.sample_id, tuple(replace(trajectory, advantage=1.0) for trajectory in group.trajectories))


METHODS: Registry[Method] = Registry(
    "memagent.methods",
    "training method",
    {
        "dapo": Method(dapo),
        "gru-mem": Method(gru_mem, needs=("gate",)),
        "infomem": Method(infomem, memories="last"),
        "himpo": Method(himpo, memories="all"),
        "sft": Method(sft, taught=True),
    },
    fits=lambda member: isinstance(member, Method),
)


def exit_reward(said: Answered) -> float:
    """Return what leaving when it did is worth, -1 to 1.

    1 right after the last segment with evidence, falling to 0 for reading on to the end; -1 for leaving before it.
    Where there is nothing to find, all must be read (1). 0 where it is not known which segments hold evidence.
    """
    trace = said.trace
    if trace is None or trace.enough is None:
        return 0.0
    read, enough = len(trace.updates), trace.enough
    if read < enough:
        return -1.0
    return 1.0 - (read - enough) / max(1, trace.segments - enough)


def right_updates(trace: Trace | None) -> list[float]:
    """Return for each update whether its gate was right, 1 or 0; nothing where evidence is not known.

    A response that the policy did not end itself is never right.
    """
    if trace is None or trace.evidence is None:
        return []
    read = zip(trace.updates, trace.evidence, strict=False)  # fewer updates than segments after an exit
    return [float(update.whole and update.changed == holds) for update, holds in read]


def credits_of(scores: Sequence[float], right: bool) -> list[float]:
    """Return the credit of each update, -1 to 1, by the scores of the gold answer without a memory and after each
    update.
    """
    recovered = [removed(score, scores[0]) for score in scores]
    utilities = [after - before for before, after in pairwise(recovered)]
    return [one if (one > 0) == right or not one else UNSUPPORTED * one for one in utilities]


def removed(with_memory: float, without: float) -> float:
    """Return the share, 0 to 1, of the gold answer's surprise that a memory removes.

    Both are mean log-probabilities of its tokens; 1 if the answer is certain from the memory, 0 if the memory does not
    help, or harms.
    """
    return min(1.0, max(0.0, 1.0 - with_memory / without)) if without < 0.0 else 0.0


def _paid(trajectory: Trajectory, scores: Sequence[float], weight: float) -> Trajectory:
    if not trajectory.reward.right:
        return trajectory
    gain, reward = removed(scores[-1], scores[0]), trajectory.reward
    paid = replace(reward, total=reward.total + weight * gain, parts={**reward.parts, "memory": gain})
    return replace(trajectory, reward=paid)
