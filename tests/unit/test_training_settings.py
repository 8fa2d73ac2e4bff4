"""The settings of a training: which make another run, and how its candidate is compared."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.errors import UsageError
from memagent.nano import bundled
from pipelines.cli.main import app
from pipelines.promote import _configs
from pipelines.training import run as training_run
from pipelines.training.data import audited, splits
from pipelines.training.run import train
from pipelines.training.settings import DataFiles, TrainingRun, prepare


def made(store: str, *sets: str) -> TrainingRun:
    return prepare("smoke", ["needles"], store=store, sets=sets)


LAYOUTS = [
    "token_budget=64",
    "zero_stage=3",
    "world_size=4",
    "gpus=1",
    "threads=7",
    "activation_checkpointing=true",
    "share_prefixes=false",
    "weight_sync='broadcast'",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_is_the_same_run(tmp_path, layout):
    assert made(str(tmp_path), f"learner.{layout}").run_id == made(str(tmp_path)).run_id


@pytest.mark.parametrize(
    "other", ["learner.lr=0.5", "learner.dtype='bfloat16'", "rollout.group_size=3", "stage.seed=9"]
)
def test_another_result_is_another_run(tmp_path, other):
    assert made(str(tmp_path), other).run_id != made(str(tmp_path)).run_id


def question_file(path: Path, answer: str, count: int = 1) -> str:
    rows = [{"question": f"{i}?", "text": f"It is {answer} {i}.", "answers": f"{answer} {i}"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def of_file(store: Path, path: str, validation: str = "", *columns: str) -> TrainingRun:
    data = [f"file={path}"]
    return prepare("smoke", data, store=str(store), files=DataFiles.of(data, validation, columns=columns))


def test_a_file_is_known_by_what_it_holds(tmp_path):
    first, moved = (question_file(tmp_path / name, "red") for name in ("a.jsonl", "b.jsonl"))
    other = question_file(tmp_path / "c.jsonl", "blue")
    run = of_file(tmp_path, first)
    assert run.run_id == of_file(tmp_path, moved).run_id != of_file(tmp_path, other).run_id
    assert run.run_id == prepare("smoke", [f"file={first}"], store=str(tmp_path)).run_id
    assert of_file(tmp_path, first, other).run_id != run.run_id, "other weights are chosen"
    with pytest.raises(UsageError, match=r"b\.jsonl has the content of .*a\.jsonl: training, validation and promotion"):
        of_file(tmp_path, first, moved)
    with pytest.raises(UsageError, match=r"gone\.jsonl cannot be read"):
        of_file(tmp_path, first, str(tmp_path / "gone.jsonl"))


def test_a_file_where_a_data_set_is_named_is_pointed_to_its_option(tmp_path):
    with pytest.raises(
        UsageError, match=r"no data set 'own\.jsonl': a file of questions is given by --dataset own\.js"
    ):
        prepare("smoke", ["own.jsonl"], store=str(tmp_path))


def test_a_file_is_trained_on_but_for_what_is_held_out(tmp_path):
    path = question_file(tmp_path / "a.jsonl", "red", 60)
    held_out = splits(of_file(tmp_path, path))
    train, validation = ({part.task(i).question for i in range(60)} for part in (held_out.train, held_out.validation))
    assert not train & validation and len(train | validation) == 60
    first = held_out.train.task(0)
    assert first.gold == (f"red {first.question[:-1]}",) and first.judge(first.gold[0]) == 1.0
    given = splits(of_file(tmp_path, path, question_file(tmp_path / "v.jsonl", "blue", 3)))
    assert len({given.train.task(i).question for i in range(60)}) == 60
    assert {given.validation.task(i).gold[0] for i in range(3)} == {"blue 0", "blue 1", "blue 2"}


def test_a_question_is_for_one_purpose(tmp_path, caplog):
    train, validation = question_file(tmp_path / "a.jsonl", "red", 20), question_file(tmp_path / "v.jsonl", "blue", 3)
    Path(validation).write_text(Path(validation).read_text() + Path(train).read_text().splitlines()[4] + "\n")
    with pytest.raises(
        UsageError, match=r"1 of 4 questions for validation are for training as well, for example '4\?'"
    ):
        splits(of_file(tmp_path, train, validation))
    row = {"question": "Another?", "text": "It is red 4.", "answers": "red 4"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    data = [f"file={train}"]
    files = DataFiles.of(data, "", str(tmp_path / "p.jsonl"))
    splits(prepare("smoke", data, store=str(tmp_path), files=files))
    assert "1 texts are for training and for promotion" in caplog.text


def test_tasks_that_teach_wrongly_are_refused_before_anything_is_started(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"{i}?", "text": f"{i}.", "answers": "red"}) + "\n" for i in range(20))
    )
    with path.open("a") as file:
        file.write(json.dumps({"question": "Who?", "text": "Ann.", "answers": "Ann"}) + "\n")
    with pytest.raises(UsageError, match=r"the answer is not in the text in \d+ of 128 tasks .*Nothing was trained"):
        train(of_file(tmp_path, str(path)))
    lenient = prepare(
        "smoke", ["needles"], store=str(tmp_path), sets=["reward.weights={contains=1.0}", "audit.tasks=4"]
    )
    lenient = replace(lenient, texts=(str(Path(__file__).parents[2] / "docs"),))
    audited(lenient)
    assert "a wrong answer is paid in" in caplog.text
    sets = ["audit.tasks=0", "audit.allowed.rival-answer=0.5"]
    assert made(str(tmp_path), *sets).run_id == made(str(tmp_path)).run_id, "it changes nothing that is learnt"


def test_an_audit_is_a_command(tmp_path):
    path = question_file(tmp_path / "a.jsonl", "red", 20)
    command = ["train", "audit", "--recipe", "smoke", "--dataset", path, "--store", str(tmp_path / "store"), "--json"]
    done = CliRunner().invoke(app, command)
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["tasks"] == 128 and report["violating"] == report["paid"] == {}
    done = CliRunner().invoke(app, [*command, "--set", "reward.weights={contains=1.0}"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["violating"] == {"wrong-paid": 128} and report["paid"]["twice"] == 128
    assert not report["refused"] and "a longer list (128)" in report["warnings"][0]
    Path(path).write_text(Path(path).read_text().replace("It is red", "It is blue"))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1 and "the answer is not in the text in 128 of 128" in json.loads(done.stdout)["refused"]
    assert CliRunner().invoke(app, command[:-1]).exit_code == 1


def test_versions_are_compared_on_the_recipes_engines_unless_somebody_says_otherwise(tmp_path, monkeypatch):
    run = prepare("reader-7b", ["needles"], store=str(tmp_path), model="nano")
    assert run.reading_config().pool.gpus == run.recipe.pool["gpus"] == 1
    (tmp_path / "own.toml").write_text("[pool]\ngpus = 4\n")
    assert run.reading_config(str(tmp_path / "own.toml")).pool.gpus == 4
    monkeypatch.setenv("MEMAGENT_CONFIG_FILE", str(tmp_path / "own.toml"))
    assert run.reading_config().pool.gpus == 4
    over = prepare("reader-7b", ["needles"], store=str(tmp_path), sets=["pool.gpus=2"], model="nano")
    assert over.reading_config().pool.gpus == 2


def test_a_base_model_without_reading_defaults_is_read_as_its_candidate(tmp_path):
    base = tmp_path / "base"
    shutil.copytree(bundled("sft"), base)
    (base / "reading.json").unlink()
    config = load_config(store=str(tmp_path / "store"))
    read = {side: ReaderSpec(one).reading for side, one in _configs(config, "nano", str(base)).items()}
    assert read["incumbent"] == read["candidate"]
    both = {side: ReaderSpec(one).reading for side, one in _configs(config, "nano", str(bundled("sft"))).items()}
    assert both["incumbent"] == ReaderSpec(load_config(store=config.store, engine__model="nano@sft")).reading


async def test_a_preview_pays_what_the_policy_says_itself(tmp_path, monkeypatch):
    """The scope of nano takes answers of near misses back; training learns from the answers as they were given."""
    seen = []

    async def roll_out(task, rollout, spec, generate, reward):
        seen.append(spec.scope)

    run = made(str(tmp_path), "model='nano'")
    assert run.reader.scheme.scope is not None
    monkeypatch.setattr(training_run, "roll_out", roll_out)
    monkeypatch.setattr(
        type(run.reader), "make_local_engine", lambda self: SimpleNamespace(start=idle, stop=idle, generate=None)
    )
    await training_run._read(run, [None])
    assert seen == [None]


async def idle():
    """Start or stop nothing."""
