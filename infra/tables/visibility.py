"""Which answers people are shown: the one rule, for all who choose among a corpus's answers.

Answers of a run are hidden if they were sampled for a harvest (kind ``agreement``), for which nobody has asked, or if
the run is withheld: a digest is from its first second, once there was a good digest before it, until it has passed the
quality checks (`pipelines.release`). The newest answer of the others is shown: where a digest is withheld, that of the
last good one.
"""

import pyarrow.compute as pc

from infra.store import Corpus
from infra.tables.delta import Table
from infra.tables.runs import SHOWN

_SAMPLED = pc.field("kind") == "agreement"


def hidden_runs(corpus: Corpus) -> set[str]:
    """Return the runs whose answers nobody is shown."""
    return _ids(corpus, _SAMPLED | pc.invert(SHOWN))


def withheld_runs(corpus: Corpus) -> set[str]:
    """Return the withheld runs. Answers of theirs count only for the very readings that they did."""
    return _ids(corpus, pc.invert(SHOWN))


def sampled_runs(corpus: Corpus) -> set[str]:
    """Return the runs whose answers were sampled for a harvest."""
    return _ids(corpus, _SAMPLED)


def _ids(corpus: Corpus, chosen: pc.Expression) -> set[str]:
    return set(Table(corpus.store, "runs").read(corpus.name, ["run_id"], chosen)["run_id"].to_pylist())
