"""The structure of the house, held by tests."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pipelines.cli.main import app

ROOT = Path(__file__).parents[2]
RANK = {"memagent": 0, "infra": 1, "pipelines": 2}
HOMES = {
    "vllm": {"infra/engines/vllm.py"},
    "deepspeed": {"infra/learner/"},
    "prefect": {"pipelines/flows/", "pipelines/cli/up.py"},
    "ray": {
        "infra/cluster/session.py",
        "infra/cluster/board.py",
        "infra/cluster/jobs.py",
        "infra/cluster/placement.py",
        "pipelines/operate/doctor.py",
        "infra/cluster/rollout_pool.py",
        "pipelines/training/loop.py",
        "infra/learner/group.py",
    },
    "mcp": {"pipelines/web/api/mcp_server.py"},
    "torch": {"infra/learner/", "pipelines/operate/doctor.py", "infra/engines/cpu_format.py", "memagent/rl/"},
}
ABOVE = {("memagent/__init__.py", "pipelines.archive")}
"""Imports against the direction, for type checkers alone: the module is loaded when its names are asked for."""
SHARED_PLAN = {("read", "plan"), ("plan", "planned_readings"), ("summarise", "plan")}
"""Stages that speak of the same plan. No other imports one, nor anything else of `pipelines`."""
SOURCES = sorted(path for part in RANK for path in (ROOT / part).rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way_and_heavy_packages_have_few_homes(path):
    name = str(path.relative_to(ROOT))
    rank = RANK[name.split("/")[0]]
    for module in imports(path):
        top = module.split(".")[0]
        assert top not in ("examples", "tools", "benchmarks", "tests"), f"{name} imports {module}: no wheel has it"
        assert RANK.get(top, 0) <= rank or (name, module) in ABOVE, f"{name} imports {module}"
        if top in HOMES:
            assert any(name.startswith(home) for home in HOMES[top]), f"{name} imports {module}"


STATED = {("infra/learner/rank.py", "deepspeed.ops.__compatible_ops__")}
"""The one that is left: DeepSpeed has no setting that keeps it from compiling its collective for CPUs, for a minute."""


def private_parts(tree):
    """Yield where a module uses a part of another package that is not public, or changes an attribute of one."""
    theirs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            top, *rest = module.split(".")
            if top in RANK or top in sys.stdlib_module_names:
                continue
            theirs.add(name)
            if any(part.startswith("_") and not part.startswith("__") for part in rest):
                yield node.lineno, module
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and rooted(node) in theirs:
            changed = isinstance(node.ctx, (ast.Store, ast.Del))
            if changed or (node.attr.startswith("_") and not node.attr.startswith("__")):
                yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.Attribute) and node.attr in ("_private", "_internal"):
            yield node.lineno, ast.unparse(node)
        sets = isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr")
        if sets and rooted(node.args[0]) in theirs:
            yield node.lineno, ast.unparse(node)


def rooted(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_parts_of_libraries_are_used_and_none_is_patched(path):
    found = {what for _, what in private_parts(ast.parse(path.read_text()))}
    assert found == {what for name, what in STATED if name == str(path.relative_to(ROOT))}


@pytest.mark.parametrize(
    "code",
    [
        "from ray._private import utils",
        "import ray\nray._private.node.Node",
        "from ray.data._internal.execution import Pool",
        "from vllm.v1.engine import utils\nutils.get_mp_context = None",
        "import vllm\nsetattr(vllm.envs, 'VLLM_X', 1)",
    ],
)
def test_a_patch_is_noticed(code):
    assert list(private_parts(ast.parse(code)))


def test_names_that_stand_on_the_whole_pipeline_are_loaded_when_they_are_asked_for():
    code = (
        "import sys, memagent; loaded = set(sys.modules); print(sorted(m for m in loaded if m.split('.')[0] in "
        "('infra', 'pipelines', 'pyarrow', 'ray', 'torch', 'deltalake'))); "
        "print(memagent.Archive.__module__, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == ["[]", "pipelines.archive False"]
    tree = ast.parse((ROOT / "memagent" / "__init__.py").read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    (imported,) = guarded.body
    import memagent

    assert {alias.name for alias in imported.names} == set(memagent._ABOVE) <= set(memagent.__all__)


def test_stages_do_not_import_each_other():
    for path in (ROOT / "pipelines" / "stages").glob("*.py"):
        for module in imports(path):
            if module.startswith("pipelines"):
                assert (path.stem, module.rpartition(".")[2]) in SHARED_PLAN, f"{path.stem} imports {module}"
    for module in imports(ROOT / "pipelines" / "cli" / "train.py"):
        assert not module.startswith("pipelines.stages"), f"training imports {module}"


@pytest.mark.parametrize("module", ["pipelines.cli.main", "examples.demo", "pipelines.flows.serve"])
def test_what_starts_first_loads_nothing_heavy(module):
    # The demo also sets variables that Prefect reads once, when it is imported.
    heavy = ("ray", "torch", "vllm", "deepspeed", "prefect", "pyarrow", "deltalake", "transformers")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_is_what_it_is_documented_to_be():
    common = {"--store", "--config", "--set"}
    model = {"--model", "--engine"}
    expected = {
        "doctor": common | model | {"--json"},
        "init": {
            "--store",
            "--engine",
            "--model",
            "--gpus",
            "--engines",
            "--base-url",
            "--tokenizer",
            "--yes",
            "--force",
        }
        | {"--output", "-o"},
        "ingest": common | {"--json", "--tag", "--explain", "--run-id", "--max-failed"},
        "harvest": common
        | model
        | {"--agreement", "--generate", "--least-share", "--exclude-tag", "--json", "--run-id"},
        "feedback": common | {"--json", "--reviewer"},
        "review": common | model | {"--port", "--reviewer", "--link", "--host", "--url", "--open"},
        "serve": common
        | model
        | {"--port", "--part", "--split", "--at-once", "--max-bytes", "--reviewer", "--host", "--url"},
        "mcp": common | model,
        "ask": common
        | model
        | {
            "--question",
            "-q",
            "--questions",
            "--archive",
            "--reread",
            "--fetch",
            "--show",
            "--open",
            "--watch",
            "--parallel-spans",
            "--dry-run",
            "--wait",
            "--budget",
            "--max-failed",
            "--json",
            "--answers",
            "--run-id",
        },
        "digest": common
        | model
        | {
            "--questions",
            "--fetch",
            "--open",
            "--parallel-spans",
            "--dry-run",
            "--wait",
            "--json",
            "--answers",
            "--run-id",
        }
        | {"--budget", "--max-failed", "--force"},
        "cost": common | {"--by", "--since", "--json"},
        "answers": common | {"--format", "--output", "-o", "--run", "--where", "--limit", "--withheld"},
        "release": common | {"--json"},
        "report": common | {"--output", "-o", "--open", "--review-url"},
        "status": common | {"--json", "--scheduled"},
        "backfill": common
        | model
        | {
            "--from",
            "--to",
            "--missing",
            "--failed",
            "--all",
            "--wait",
            "--budget",
            "--max-failed",
            "--json",
            "--run-id",
        },
        "optimize": common | {"--retention-days", "--json"},
        "quarantine": common | {"--json", "--dismiss"},
        "up": common
        | model
        | {
            "--cron",
            "--scores-cron",
            "--retrain-cron",
            "--optimize-cron",
            "--enough",
            "--recipe",
            "--check",
            "--timezone",
            "--at-once",
            "--port",
            "--review-port",
            "--host",
            "--url",
        },
        "evaluate": common
        | model
        | {
            "--suite",
            "--lengths",
            "--kinds",
            "--n",
            "--data",
            "--passages",
            "--text",
            "--control",
            "--reworded",
            "--method",
        }
        | {"--window", "--against", "--seed", "--output", "-o", "--write", "--json", "--run-id"},
        "check": common | {"--repair", "--json"},
        "forget": common | {"--where", "--dry-run", "--canary", "--json"},
        "metrics": common | {"--port", "--host", "--token-file", "--days"},
        "scores": common | {"--suite", "--run", "--pictures", "--output", "-o", "--json"},
    }
    commands = get_command(app).commands
    assert set(commands) == set(expected) | {"train", "qa", "policies", "engine"}
    assert set(commands["train"].commands) == {"audit", "exports", "plan", "report"}
    assert set(commands["engine"].commands) == {"list", "stop"}
    assert set(commands["qa"].commands) == {"import", "export"}
    assert set(commands["policies"].commands) == {"list", "show", "promote", "rollback", "compare"}
    for name, options in expected.items():
        found = {opt for param in commands[name].params if param.param_type_name == "option" for opt in param.opts}
        assert found == options, name


def test_exported_names():
    import memagent

    assert memagent.__all__ == sorted(memagent.__all__)
    assert set(memagent.__all__) == {
        *("Answer", "Answers", "Archive", "from_text"),
        *("Completion", "Engine", "Sampling", "ScriptedEngine"),
        *("Config", "ReadingConfig", "load_config"),
        *("Document", "Evidence", "ReadingResult", "Policy", "Question", "Segment", "Turn"),
        *("MemagentError", "UsageError"),
        *("Prompts", "Template", "load_template"),
        *("Reading", "ReadingSpec", "Stream", "read"),
        *("Tokenizer", "load_tokenizer", "segments"),
    }
    assert all(getattr(memagent, name).__doc__ for name in memagent.__all__)
