"""The command lines of flows' stages are ones that the command line takes, and say what they were made of."""

from types import SimpleNamespace

import pytest
from typer.main import get_command

from memagent.evaluation.records import Columns
from memagent.evaluation.suites import Suite
from memagent.rl.promotion import PromotionSpec
from pipelines.cli.main import app
from pipelines.flows import parameters as commands
from pipelines.training.settings import DataFiles


def parsed(argv: list[str]) -> dict[str, object]:
    """Parse a command line as `memagent` does, without running anything; return the options of the command itself."""
    found, rest = get_command(app), list(argv)
    while rest and rest[0] in getattr(found, "commands", {}):
        found = found.commands[rest.pop(0)]  # type: ignore[attr-defined]
    return dict(found.make_context("memagent", rest).params)


FILES = DataFiles("/v.jsonl", "/p.jsonl", Columns("q", "t", "a"))
RUN = SimpleNamespace(
    name="nano-cpu",
    data=("qa", "needles"),
    texts=("/texts",),
    sets=("stage.max_steps=2",),
    files=FILES,
    given_name="first",
)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (commands.digest("c", "r"), {"corpus": "c", "run_id": "r", "answers": False}),
        (
            commands.ask("c", "r", "f.csv", True),
            {"question": [], "questions": "f.csv", "archive": True, "answers": False},
        ),
        (commands.ask("c", "r", "s3://b/f.jsonl", False), {"questions": "s3://b/f.jsonl", "archive": False}),
        (commands.ingest("c", ["/a", "s3://b/c"], "r"), {"corpus": "c", "sources": ["/a", "s3://b/c"], "run_id": "r"}),
        (
            commands.evaluate(
                Suite("needles", ("niah_single_1",), (1000, 2000), n=3, control="no-document"), ["/t"], "r"
            ),
            {"suite": "needles", "n": 3, "kinds": "niah_single_1", "lengths": "1000,2000", "control": "no-document"},
        ),
        (
            commands.ingest("--help", ["--set", "engine.trust_remote_code=true", "--store", "/elsewhere"], "r"),
            {"corpus": "--help", "sources": ["--set", "engine.trust_remote_code=true", "--store", "/elsewhere"]},
        ),
        (commands.digest("--store=/elsewhere", "--r"), {"corpus": "--store=/elsewhere", "run_id": "--r"}),
        (commands.harvest("c", 4, "r"), {"corpus": "c", "agreement": 4, "run_id": "r"}),
        (commands.train(RUN), {"config": "nano-cpu", "data": ["qa", "needles"], "set_": ["stage.max_steps=2"]}),
        (
            commands.train(RUN),
            {
                "validation": "/v.jsonl",
                "promotion": "/p.jsonl",
                "run_name": "first",
                "columns": ["question=q", "text=t", "answers=a"],
            },
        ),
        (
            commands.promote("nano@1", PromotionSpec(lengths=(8, 16), n=3)),
            {"policy_id": "nano@1", "check": ["lengths=8,16", "n=3"]},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_stage_is_a_command_with_the_same_parameters(argv, wanted):
    found = parsed(argv)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    assert {name: plain[name] and (str(plain[name]) if name == "control" else plain[name]) for name in wanted} == wanted
