"""One of each that is found by name, brought by a package from outside: the one that docs/extending.md shows."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from infra.readers import ReaderSpec
from infra.sources import parse
from memagent.config import IngestConfig, load_config
from memagent.reading.conversations import ListStream, ReadingRequest
from memagent.rl.config import load_recipe
from memagent.rl.dataset import DATASETS, Cut, DatasetRequest
from memagent.rl.reward import Answered, Reward, reward
from memagent.rl.reward import MemoryUpdate, Trace
from memagent.rl.trajectory import Conversation, Group, Trajectory
from memagent.reading.segmenting import segments
from memagent.evaluation.loaders import load_samples
from memagent.evaluation.suites import Suite

folder = Path(sys.argv[1])
sets = ['engine.options={says="Oslo"}']

def reader(*more):
    return ReaderSpec(load_config(store=str(folder / "store"), engine__kind="whisper", sets=[*sets, *more]))

async def read(spec, text):
    engine = spec.make_engine()
    await engine.start()
    cut = list(segments("", text, spec.tokenizer, spec.reading.segment_tokens))
    request = ReadingRequest("r", "What is the capital?", ListStream(cut))
    result = await spec.method(request, spec.scheme, engine.generate, lambda turn: None).run()
    await engine.stop()
    return [result.answer, result.conversations, len(cut)]

plain = reader()
recipe = load_recipe("smoke", ["reward.weights={exact=1.0, brief=0.5}"])
cut = Cut(plain.tokenizer, plain.reading, 4)
made = DATASETS["capitals"](DatasetRequest("Norway", cut, lambda: [], 0, 1, plain.policy.path))
(folder / "a.memo").write_text("A memo\\nOslo is a city.")
(folder / "t.jsonl").write_text(json.dumps({"passage": "p", "riddle": "r?", "solution": "s"}) + "\\n")
suite = Suite("ruler", kinds=("vault",), lengths=(160,), n=2)
long = "A sentence about nothing at all. " * 200
print(json.dumps({
    "read": asyncio.run(read(plain, long)),
    "policy": [plain.policy.name, reader("engine.options={says='Rome'}").policy.name, plain.policy.policy_id],
    "baseline": asyncio.run(read(reader("method=first-segment"), long)),
    "reward": reward(Answered("Oslo", True, ("Oslo",)), recipe.reward.weights).total,
    "tasks": [made.train.task(3).gold, made.validation.task(3).question],
    "task": [
        [s.sample_id, s.answers[0] in s.text(), s.depth]
        for group in (suite.check(), suite.groups())[1] for s in group.samples(plain.tokenizer, [])
    ],
    "corpus": suite.corpus(plain.tokenizer, []),
    "source": [(p.title, p.text) for p in parse(str(folder / "a.memo"), "a.memo", IngestConfig())],
    "sample": [(s.question, s.answers) for s in load_samples(folder / "t.jsonl")],
}))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def install(site: Path, name: str, code: str, points: dict[str, dict[str, str]]) -> None:
    """Lay a package out as an installer leaves it: a module, and its metadata beside it."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in them.items()) for group, them in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def run(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_the_package_that_the_page_shows_adds_one_of_each(tmp_path):
    points = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    install(tmp_path / "site", "archive_reader", blocks("python")[0], points)
    done = run(tmp_path / "site", PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    answer, conversations, cut = said["read"]
    assert answer == "Oslo" and conversations == cut + 1 > 2
    first, second, policy_id = said["policy"]
    assert first.startswith("whisper-nano-") and policy_id.startswith(f"{first}@")
    assert second.startswith("whisper-nano-") and first != second, "other options are another policy, not a version"
    assert said["baseline"] == ["Oslo", 2, cut], "one conversation over the text, and the answer"
    assert said["reward"] == 1.5
    assert said["tasks"] == [["Paris"], "What is the capital of Norway?"]
    assert [name for name, *_ in said["task"]] == ["vault-160-s0-0000", "vault-160-s0-0001"]
    assert all(there for _, there, _ in said["task"]) and said["corpus"].startswith("eval-ruler-")
    assert said["source"] == [["A memo", "Oslo is a city."]]
    assert said["sample"] == [["r?", ["s"]]]


ASK = """
import sys
from memagent.reading.engine import ENGINES
from memagent.errors import MemagentError
for name in sys.argv[1:]:
    try:
        print(name, "of", ENGINES.find(name).__module__)
    except MemagentError as error:
        print(type(error).__name__, error)
"""
ASKED = ("broken", "twice", "data", "vllm", "absent")


@pytest.fixture(scope="module")
def told_of_engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process says of each engine."""
    site = tmp_path_factory.mktemp("engines") / "site"
    install(
        site,
        "one",
        "raise ImportError('not there')",
        {"memagent.engines": {"broken": "one:gone", "twice": "one:a", "data": "math:tau"}},
    )
    install(site, "two", "def a(request): ...", {"memagent.engines": {"twice": "two:a", "vllm": "two:a"}})
    done = run(site, ASK, *ASKED)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(ASKED, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "broken",
            r"ConfigError engine 'broken' of one 1\.0 \(one:gone\) cannot be imported: ImportError: not there",
        ),
        ("twice", r"ConfigError engine 'twice' is brought by one 1\.0 .* and two 1\.0 .*: uninstall one of them"),
        ("data", r"ConfigError engine 'data' of one 1\.0 .* cannot be used: it is of type float\. docs/extending"),
        ("vllm", "^vllm of infra.engines.vllm$"),
        ("absent", r"ConfigError no engine 'absent'\. There are: vllm, openai, scripted, broken, data, twice; "),
    ],
)
def test_what_cannot_be_used_says_why(told_of_engines, name, said):
    assert re.search(said, told_of_engines[name]), told_of_engines[name]


def test_an_unknown_engine_names_those_that_there_are(tmp_path):
    install(tmp_path / "site", "two", "", {"memagent.engines": {"mine": "two:a"}})
    done = run(tmp_path / "site", "from memagent.config import load_config; load_config(sets=['engine.kind=nobodys'])")
    assert "no engine 'nobodys'. There are: vllm, openai, scripted, mine" in done.stderr, done.stderr[-2000:]


LATE = """
import json, sys
from memagent.errors import MemagentError
from pipelines.training.settings import prepare
said = []
for data, reward in json.loads(sys.argv[1]):
    try:
        prepare("smoke", [data], store=sys.argv[2], sets=[f"reward.weights={{{reward}=1.0}}"])
    except MemagentError as error:
        said.append(f"{type(error).__name__} {error}")
print(json.dumps([said, "ray" in sys.modules, "torch" in sys.modules]))
"""
WRONG = (("nobodys", "exact"), ("lost=x", "exact"), ("needles", "nobodys"), ("needles", "lost"))


@pytest.fixture(scope="module")
def told_of_trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What one process says of each data set and reward."""
    folder = tmp_path_factory.mktemp("trainings")
    points = {"memagent.datasets": {"lost": "one:gone"}, "memagent.rewards": {"lost": "one:gone"}}
    install(folder / "site", "one", "", points)
    done = run(folder / "site", LATE, json.dumps(WRONG), str(folder / "store"))
    assert done.returncode == 0, done.stderr[-2000:]
    said, *heavy = json.loads(done.stdout)
    assert heavy == [False, False], "nothing heavy was needed for it"
    return dict(zip(WRONG, said, strict=True))


@pytest.mark.parametrize(
    ("data", "reward", "said"),
    [
        (
            "nobodys",
            "exact",
            r"ConfigError no data set 'nobodys'\. There are: qa, file, needles, contracts, lost; installed",
        ),
        ("lost=x", "exact", r"ConfigError data set 'lost' of one 1\.0 .* cannot be imported: AttributeError"),
        ("needles", "nobodys", r"ConfigError recipe .*reward: .*no reward function 'nobodys'\. There are: exact, "),
        ("needles", "lost", r"ConfigError reward function 'lost' of one 1\.0 .* cannot be imported: AttributeError"),
    ],
)
def test_a_training_is_refused_before_anything_starts(told_of_trainings, data, reward, said):
    assert re.search(said, told_of_trainings[data, reward]), told_of_trainings[data, reward]


FILES = """
import json, sys
from memagent.errors import UsageError
from memagent.evaluation.loaders import load_samples
def read(**row):
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps(row))
    try:
        return [s.question for s in load_samples(sys.argv[1])]
    except UsageError as error:
        return str(error)
print(json.dumps([read(context="c", input="i?", answers=["a"], index=0), read(other="o")]))
"""


def test_files_of_known_formats_need_no_other_package(tmp_path):
    install(tmp_path / "site", "one", "raise ImportError('not there')", {"memagent.formats": {"lost": "one:gone"}})
    done = run(tmp_path / "site", FILES, str(tmp_path / "samples.jsonl"))
    assert done.returncode == 0, done.stderr[-2000:]
    known, unknown = json.loads(done.stdout)
    assert known == ["i?"] and "format 'lost' of one 1.0" in unknown


INGEST = """
import json, sys
from pathlib import Path
from infra.sources.diff import make_plan
from infra.sources.sandbox import Guard
from infra.store.schemas import SOURCES
from memagent.config import IngestConfig
from memagent.errors import SourceError
options = IngestConfig()
work = make_plan([sys.argv[1]], SOURCES.empty_table(), options).work
stamps = {Path(row["source"]).name: row["stamp"] for row in work.to_pylist()}
guard, texts = Guard(options), {}
for name in stamps:
    path = str(Path(sys.argv[1], name))
    try:
        texts[name] = [parsed[0].text for parsed in guard.parse(path, name)]
    except SourceError as error:
        texts[name] = str(error)
guard.close()
print(json.dumps([stamps, texts]))
"""


def test_sources_are_read_anew_by_a_parser_that_is_installed(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "a.memo").write_text("x\ny")
    (folder / "b.txt").write_text("b")
    code = """
from infra.sources.base import Parsed, SourceFormat
def parse(stream, request):
    for number, line in enumerate(stream.read().decode().split()):
        yield Parsed(line, "", "text/x-memo", row=str(number))
MEMO = SourceFormat(parse, table=True)
"""

    def listed(site: Path) -> list[dict]:
        done = run(site, INGEST, str(folder))
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    before, texts = listed(tmp_path / "nothing")
    assert texts == {"a.memo": ["x\ny"], "b.txt": ["b"]}, "text, where no package knows the suffix"
    install(tmp_path / "site", "memos", code, {"memagent.sources": {".memo": "memos:MEMO"}})
    after, texts = listed(tmp_path / "site")
    assert texts == {"a.memo": ["x", "y"], "b.txt": ["b"]}
    assert before["a.memo"] != after["a.memo"] and before["b.txt"] == after["b.txt"]
    install(
        tmp_path / "broken", "memos", "raise ImportError('not there')", {"memagent.sources": {".memo": "memos:MEMO"}}
    )
    _, texts = listed(tmp_path / "broken")
    assert "source format '.memo' of memos 1.0 (memos:MEMO) cannot be imported" in texts["a.memo"]
    assert texts["b.txt"] == ["b"], "the others are read"


def test_another_option_of_an_engine_reads_anew(tmp_path):
    points = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    install(tmp_path / "site", "archive_reader", blocks("python")[0], points)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.memo").write_text("A memo\nOslo is the capital of Norway.")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}
    # As installed, where this checkout is on nobody's path.
    line = [sys.executable, "-P", "-m", "memagent", "ingest", "--explain", str(tmp_path / "sources" / "a.memo")]
    alone = environment | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(line, capture_output=True, text=True, env=alone, cwd=tmp_path, check=False)
    assert "Oslo is the capital of Norway." in done.stdout, done.stdout + done.stderr

    def command(*arguments: str) -> str:
        line = [sys.executable, "-P", "-m", "memagent", *arguments, "--store", str(tmp_path / "store")]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def ask(options: str) -> tuple[list[str], int]:
        sets = ("--engine", "whisper", "--set", f"engine.options={options}")
        said = json.loads(command("ask", "memos", "-q", "What is the capital?", *sets, "--json"))
        return [row["answer"] for row in said["answers"]], said["summary"]["readings"]["answered_before"]

    command("ingest", "memos", str(tmp_path / "sources"))
    assert ask("{says='Oslo'}") == (["Oslo"], 0)
    assert ask("{says='Oslo'}") == (["Oslo"], 1)
    assert ask("{says='Rome'}") == (["Rome"], 0)
