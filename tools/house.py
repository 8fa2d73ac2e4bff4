"""Count what makes the product hard to carry on, and hold it to a budget: ``python -m tools.house``.

Files, lines, modules, circles of imports and class names with several meanings; ``-v`` names the last two. `BUDGET`
bounds what it counts; a figure above its bound makes the status 1.
"""

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("memagent", "infra", "pipelines")
SMALL = 50
"""Lines below which a file is small."""
BUDGET: Mapping[str, int] = {
    "files": 240,
    "lines": 52_750,
    "modules with one importer": 50,
    "files below 50 lines": 27,
    "circles of imports": 0,
    "class names with several meanings": 0,
    "core dependencies": 20,
}
"""What it is today; a change that needs more says why in its message."""
WAYS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "from `memagent ask` to the loop": (
        10,
        (
            *("pipelines.cli.ask.ask", "pipelines.cli.ask._answered", "pipelines.target.ask_target"),
            *("pipelines.ask.run_readings", "pipelines.ask._run", "pipelines.stages.read.read"),
            *("infra.cluster.jobs.run_job", "infra.cluster.jobs._local"),
            *(
                "infra.cluster.reading_worker.ReadingWorker.run",
                "infra.cluster.reading_worker.ReadingWorker._read_item",
            ),
            "memagent.reading.loop.Reading.run",
        ),
    ),
    "from `memagent train` to the learner that calls the optimizer": (
        6,
        (
            *("pipelines.cli.train._train", "pipelines.training.run.train", "pipelines.training.run._train"),
            *("pipelines.training.loop.Loop.run", "pipelines.training.loop.Loop._step"),
            *("infra.learner.group.LearnerGroup.learn", "infra.learner.rank.Learner.learn"),
        ),
    ),
    "from the scheduled flow to the pass": (
        6,
        (
            *("pipelines.flows.answering.digest_corpus", "pipelines.flows.answering.digest_stage"),
            *("pipelines.flows.ray_job.work", "pipelines.ask.digest", "pipelines.ask.run_readings"),
            *("pipelines.ask._run", "pipelines.stages.read.read"),
        ),
    ),
}
"""Functions on a way through the product, each called by the one before it, and the most calls that it may take."""


@dataclass
class Module:
    """A file of the product."""

    name: str
    lines: int
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    """Names in this module -> what they stand for, as ``module`` or ``module.name``."""


def load(packages: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Return the modules of some packages by name."""
    modules = {}
    for path in sorted(path for package in packages for path in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, len(text.splitlines()), ast.parse(text))
    for module in modules.values():
        module.imports = dict(imported(module.tree, modules))
    return modules


def imported(tree: ast.Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """Yield what a module imports of the product, also inside functions, but for type checkers alone."""
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and _is_type_checking(test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules or node.module in modules:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def module_of(target: str, modules: Mapping[str, Module]) -> str:
    """Return the module that an imported name is of, or is."""
    return target if target in modules else target.rpartition(".")[0]


def importers(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return, for each module, those that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for target in module.imports.values():
            found[module_of(target, modules)].add(module.name)
    return found


def circles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or by others."""
    edges = {name: _loaded(name, module, modules) for name, module in modules.items()}
    reach = {name: _reached(name, edges) for name in modules}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in modules}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def _loaded(name: str, module: Module, modules: Mapping[str, Module]) -> set[str]:
    """Return what importing a module imports: the modules that it names, and the packages that they are in."""
    named = {module_of(target, modules) for target in module.imports.values()}
    packages = {".".join(one.split(".")[:depth]) for one in named for depth in range(1, one.count(".") + 1)}
    return {one for one in named | packages if one in modules and one != name and not name.startswith(f"{one}.")}


def _reached(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += edges.get(name, ())
    return seen


def shared_classes(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return public class names that several modules define, with these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def broken_calls(way: Iterable[str], modules: Mapping[str, Module]) -> list[str]:
    """Return the functions of a way that are not there, or are not called by what comes before them.

    A function that is passed on (a stage's body, to Prefect) is named by the one that passes it.
    """
    broken, named = list[str](), set[str]()
    for step in way:
        function = _function(step, modules)
        name = step.rpartition(".")[2]
        if function is None or (named and name not in named):
            broken.append(step)
        named |= set(names_in(function)) if function is not None else set()
    return broken


def _function(step: str, modules: Mapping[str, Module]) -> ast.AST | None:
    module = next(name for name in (step.rsplit(".", depth)[0] for depth in (1, 2)) if name in modules)
    found: ast.AST | None = modules[module].tree
    for part in step.removeprefix(f"{module}.").split("."):
        inside = getattr(found, "body", ())
        found = next((node for node in inside if getattr(node, "name", None) == part), None)
    return found


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that code uses: variables, attributes and what it imports."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.alias):
            yield part.name


def figures(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return the figures of `BUDGET`."""
    users = importers(modules)
    made = Counter(
        part.func.id
        for module in modules.values()
        for part in ast.walk(module.tree)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "files": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "modules with one importer": sum(len(users[name]) == 1 for name in modules),
        f"files below {SMALL} lines": sum(module.lines < SMALL for module in modules.values()),
        "circles of imports": len(circles(modules)),
        "class names with several meanings": len(shared_classes(modules)),
        "Store( in the code": made["Store"],
        "Corpus( in the code": made["Corpus"],
        "core dependencies": len(project["dependencies"]),
    }


def main() -> int:
    """Print the figures with their bounds; return 1 if one is above its bound."""
    modules = load()
    found = figures(modules)
    for name, value in found.items():
        bound = BUDGET.get(name)
        over = bound is not None and value > bound
        print(f"{'!' if over else ' '} {name}: {value:,}" + ("" if bound is None else f" (at most {bound:,})"))
    broken = [step for _, way in WAYS.values() for step in broken_calls(way, modules)]
    for name, (most, way) in WAYS.items():
        print(f"{'!' if len(way) - 1 > most else ' '} calls {name}: {len(way) - 1} (at most {most})")
    for step in broken:
        print(f"! {step} is not called by the functions before it")
    if "-v" in sys.argv:
        for circle in circles(modules):
            print("circle:", ", ".join(circle))
        for name, places in shared_classes(modules).items():
            print(f"class {name}:", ", ".join(places))
    long = any(len(way) - 1 > most for most, way in WAYS.values())
    return int(long or bool(broken) or any(found[name] > bound for name, bound in BUDGET.items()))


if __name__ == "__main__":
    sys.exit(main())
