"""Fixtures that every kind of test uses."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from memagent.reading.conversations import ReadingSpec
from memagent.reading.tokens import Tokenizer
from tests.support.shared import Shared
from tests.support.starts import MOST, Starts, too_many
from tests.support.texts import make_scheme, toy_tokenizer
from tests.support.warm import no_engine_is_left, warm_engines_of_this_session

__all__ = ["no_engine_is_left", "warm_engines_of_this_session"]

# How long an example takes says what else the machine does.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

GROUPS = {"served": "prefect", "cluster": "prefect", "prefect_server": "prefect", "ray_in_process": "ray"}
"""Fixtures of `integration/` that take long to start, and the group of the files that name them."""
TOGETHER = {
    "reader": ("commands", "docs", "evaluate", "notebooks", "serving", "walks"),
    "learners": ("learning_loop", "own_model", "real_model", "training_live"),
}
"""Groups of files of `e2e/`: those that share the engine of the bundled reader, and those whose engines and learners
take gigabytes, of which two at a time are more than a small machine has."""
TESTS = Path(__file__).parent
NORMAL = "not slow"
"""The tests of `make test`, as its option -m says."""
_starts = pytest.StashKey[Starts]()
_shared = pytest.StashKey[Shared]()
LONGEST_FIRST = ("learners", "reader", "prefect", "ray", "other ray", "e2e", "integration", "unit")
"""Groups, then folders. What takes longest begins first, so that the workers end together."""


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.stash[_shared] = Shared(config.workerinput["shared"])
    else:  # the process that all others are of
        config.stash[_starts] = Starts()
        config.stash[_shared] = Shared()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["shared"] = str(node.config.stash[_shared].folder)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_shared].end()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _starts not in session.config.stash:
        return
    counts = session.config.stash[_starts].end()
    if _is_make_test(session.config) and too_many(counts):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[_starts].end()
    said = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    terminalreporter.write_line(f"started: {said or 'nothing'}")
    for kind in too_many(counts) if _is_make_test(config) else ():
        terminalreporter.write_line(
            f"Too many starts of {kind}: {counts[kind]}, and {MOST[kind]} are allowed (tests/support/starts.py). "
            "Let the tests share one.",
            red=True,
        )


def _is_make_test(config: pytest.Config) -> bool:
    """Tell whether this is all of `make test`, no selection of it."""
    selected = config.getoption("keyword") or config.getoption("lf") or config.getoption("deselect")
    return config.getoption("markexpr") == NORMAL and not selected and config.args == ["tests"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST_FIRST.index(place_of(item.path)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a file's tests to one worker, and to the same one those of all files that share a server or Ray."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.split("::")[0])

    return Sharing(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def group_of(file: Path) -> str:
    """Return the group of a file; one of its own is named as the file."""
    folder = file.parent.name
    if folder == "e2e":
        mine = file.stem.removeprefix("test_")
        return next((group for group, files in TOGETHER.items() if mine in files), str(file))
    if folder != "integration":
        return str(file)
    asked = re.findall(r"(?:def \w+|usefixtures)\(([^)]*)", file.read_text())
    words = set(re.findall(r"\w+", " ".join(asked)))
    group = next((group for fixture, group in GROUPS.items() if fixture in words), str(file))
    # Two halves: one would be the last to end by minutes.
    return "other ray" if group == "ray" and file.name >= "test_f" else group


def place_of(file: Path) -> str:
    """Return the place of a file's tests in `LONGEST_FIRST`."""
    group = group_of(file)
    return group if group in LONGEST_FIRST else file.relative_to(TESTS).parts[0]


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Shared:
    """What the session's workers start once for all of them."""
    return pytestconfig.stash[_shared]


@pytest.fixture(scope="session")
def s3_bucket(shared: Shared) -> Iterator[str]:
    """Give the URL of a bucket of SeaweedFS, which serves the whole session; ``AWS_*`` variables lead there."""
    from tests.support.s3_server import shared_s3

    with shared_s3(shared) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(toy_tokenizer().to_str())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without weights: what the scripted engine needs."""
    return save_model(tmp_path_factory.mktemp("model"))


def save_model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    defaults = {"template": "nano", "layout": "section-first", "gate": True, "segment_tokens": 64}
    (folder / "reading.json").write_text(json.dumps(defaults | {"memory_tokens": 64, "answer_tokens": 32}))
    return folder


@pytest.fixture
def scheme(tokenizer: Tokenizer) -> ReadingSpec:
    return make_scheme(tokenizer)
