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
from memagent.conversations import ListStream, ReadingRequest
from memagent.rl.config import load_recipe
from memagent.rl.dataset import DATASETS, Cut, DatasetRequest
from memagent.rl.reward import Answered, reward
from memagent.segmenting import segments
from memagent.tasks.loaders import load_samples

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
long = "A sentence about nothing at all. " * 200
print(json.dumps({
    "read": asyncio.run(read(plain, long)),
    "policy": [plain.policy.policy_id, reader("engine.options={says='Rome'}").policy.policy_id],
    "baseline": asyncio.run(read(reader("method=first-segment"), long)),
    "reward": reward(Answered("Oslo", True, ("Oslo",)), recipe.reward.weights).total,
    "tasks": [made.train.task(3).gold, made.validation.task(3).question],
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
    first, second = said["policy"]
    assert first.startswith("whisper-") and first != second, "other options are another policy"
    assert said["baseline"] == ["Oslo", 2, cut], "one conversation over the text, and the answer"
    assert said["reward"] == 1.5
    assert said["tasks"] == [["Paris"], "What is the capital of Norway?"]
    assert said["source"] == [["A memo", "Oslo is a city."]]
    assert said["sample"] == [["r?", ["s"]]]


ASK = """
import sys
from memagent.engine import ENGINES
from memagent.errors import MemagentError
try:
    ENGINES[sys.argv[1]]
except (KeyError, MemagentError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "broken",
            r"ConfigError engine 'broken' of one 1\.0 \(one:gone\) cannot be imported: ImportError: not there",
        ),
        ("twice", r"ConfigError engine 'twice' is brought by one 1\.0 .* and by two 1\.0 .*: uninstall one of them"),
        ("vllm", "^$"),
        ("absent", "KeyError 'absent'"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path, name, said):
    site = tmp_path / "site"
    install(
        site,
        "one",
        "raise ImportError('not there')",
        {"memagent.engines": {"broken": "one:gone", "twice": "one:a"}},
    )
    install(site, "two", "def a(request): ...", {"memagent.engines": {"twice": "two:a", "vllm": "two:a"}})
    done = run(site, ASK, name)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(said, done.stdout.strip()), done.stdout


def test_an_unknown_engine_names_those_that_there_are(tmp_path):
    install(tmp_path / "site", "two", "", {"memagent.engines": {"mine": "two:a"}})
    done = run(tmp_path / "site", "from memagent.config import load_config; load_config(sets=['engine.kind=nobodys'])")
    assert "no engine 'nobodys'. There are: vllm, openai, scripted, mine" in done.stderr, done.stderr[-2000:]
