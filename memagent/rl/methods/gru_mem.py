"""GRU-Mem (arXiv 2602.10560): the update gate and the exit gate of the reading are paid for being right.

From the paper's abstract and its authors' page: two gates in the policy's own words (`reading.gate`,
`reading.early_exit`), a reward for right updates and one for leaving at the right time, trained end to end beside the
answer's reward. The size and the place of each is ours, as the paper's formulas could not be read: an update is right
(1, else 0) if the memory changed where the segment holds evidence and only there, and its advantage is over the mean of
the group at the same segment; leaving is paid by `exit_reward`, a term of ``reward.weights``.
"""

from memagent.rl.advantage import Baseline, add_turns, turn_advantages, with_advantages
from memagent.rl.methods import Likelihoods, Method
from memagent.rl.reward import Answered
from memagent.rl.trace import Trace
from memagent.rl.trajectory import Group


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


def assign(group: Group, baseline: Baseline, weight: float, likelihoods: Likelihoods) -> Group:
    """See `memagent.rl.methods.Assign`."""
    turns = turn_advantages([right_updates(trajectory.trace) for trajectory in group.trajectories])
    return add_turns(with_advantages(group, baseline), turns, weight)


METHOD = Method(assign, needs=("gate",))
