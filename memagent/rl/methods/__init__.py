"""Training methods: what the advantages of a group's conversations are made of.

Multi-Conv DAPO (MemAgent, arXiv 2507.02259) gives the reward of the answer to all conversations of a rollout. The
others, one file each, pay what the memory did besides. A recipe names one: ``method.name``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from memagent.registry import Registry
from memagent.rl.advantage import Baseline, with_advantages
from memagent.rl.trajectory import Group

Memories = Literal["none", "last", "all"]
"""Memories from which the learner scores a rollout's gold answer: none, the last one, or that after each update."""
Likelihoods = Sequence[Sequence[float]]
"""For each rollout of a group and each of its probes (`memagent.rl.trajectory.Trajectory.probes`), the mean
log-probability of a token of the gold answer; the first probe has no memory."""


class Assign(Protocol):
    """Sets the advantages of a group."""

    def __call__(self, group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
        """Return the group with the advantage of each trajectory, or of each conversation.

        Args:
            group: with rewards.
            baseline: of the trajectories' rewards (`memagent.rl.advantage.advantages`).
            weight: of what the method adds to the answer's reward (``method.weight``).
            likelihoods: empty for a method without `Method.memories`.
        """


@dataclass(frozen=True, slots=True)
class Method:
    """A training method."""

    assign: Assign
    memories: Memories = "none"
    needs: tuple[str, ...] = ()
    """Keys of the reading that must be on."""


def dapo(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """Give all conversations of a rollout the advantage of its reward."""
    return with_advantages(group, baseline)


METHODS: Registry[Method] = Registry(
    "memagent.methods",
    "training method",
    {
        "dapo": Method(dapo),
        "gru-mem": "memagent.rl.methods.gru_mem:METHOD",
        "infomem": "memagent.rl.methods.infomem:METHOD",
        "himpo": "memagent.rl.methods.himpo:METHOD",
    },
    fits=lambda member: isinstance(member, Method),
)


def removed(with_memory: float, without: float) -> float:
    """Return the share, 0 to 1, of the gold answer's surprise that a memory removes.

    Both are mean log-probabilities of its tokens; 1 if the answer is certain from the memory, 0 if the memory does not
    help, or harms.
    """
    return min(1.0, max(0.0, 1.0 - with_memory / without)) if without < 0.0 else 0.0
