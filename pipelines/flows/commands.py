"""Command lines of Ray jobs that do the same work as the flows' stages.

`infra.cluster.jobs_api.run_job` adds ``--json``.
"""

from collections.abc import Sequence
from dataclasses import asdict

from memagent.rl.promotion import PromotionSpec
from memagent.tasks.suites import Suite
from pipelines.training.settings import TrainingRun

Value = str | int | bool | Sequence[str] | None


def command(*words: str, **options: Value) -> list[str]:
    """Return a command line of `memagent`.

    Args:
        words: the command, and its arguments.
        options: by name; a list repeats its option, True and False are ``--name`` and ``--no-name``; None and empty
            values are left out.
    """
    argv = list(words)
    for name, value in options.items():
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        if isinstance(value, bool):
            argv.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, str | int):
            argv += [flag, str(value)] if value != "" else []
        else:
            argv += [part for item in value or () for part in (flag, item)]
    return argv


def digest(corpus: str, run_id: str) -> list[str]:
    """Digest a corpus by its default questions; the answers stay in the store."""
    return command("digest", corpus, run_id=run_id, answers=False)


def ask(
    corpus: str, run_id: str, questions: Sequence[str] | None, questions_file: str | None, archive: bool
) -> list[str]:
    """Ask questions of a corpus; the answers stay in the store."""
    more = {"archive": True} if archive else {}
    return command(
        "ask", corpus, run_id=run_id, fetch=False, answers=False, question=questions, questions=questions_file, **more
    )


def optimize(corpus: str, retention_days: float) -> list[str]:
    """Compact a corpus's files."""
    return command("optimize", corpus, retention_days=str(retention_days))


def ingest(corpus: str, sources: Sequence[str], run_id: str) -> list[str]:
    """Take sources into a corpus."""
    return command("ingest", corpus, *sources, run_id=run_id)


def evaluate(suite: Suite, texts: Sequence[str], run_id: str) -> list[str]:
    """Read a suite and score the answers."""
    return command(
        "evaluate",
        suite=suite.name,
        n=suite.n,
        seed=suite.seed,
        run_id=run_id,
        kinds=",".join(suite.kinds),
        lengths=",".join(map(str, suite.lengths)),
        data=suite.data,
        text=texts,
        control=suite.control,
    )


def harvest(corpus: str, samples: int, run_id: str) -> list[str]:
    """Make training rows from answers."""
    return command("harvest", corpus, agreement=samples, run_id=run_id)


def train(run: TrainingRun) -> list[str]:
    """Train a stage."""
    files = run.files
    columns = [f"{name}={value}" for name, value in asdict(files.columns).items() if value]
    return command(
        "train",
        recipe=run.name,
        data=run.data,
        text=run.texts,
        set=run.sets,
        validation=files.validation,
        promotion=files.promotion,
        columns=columns,
        run=run.given_name,
    )


def promote(candidate: str, spec: PromotionSpec) -> list[str]:
    """Run the promotion check on a candidate."""
    keys = spec.model_dump(exclude_defaults=True)
    plain = {key: ",".join(map(str, value)) if isinstance(value, tuple) else value for key, value in keys.items()}
    return command("policies", "promote", candidate, check=[f"{key}={value}" for key, value in plain.items()])
