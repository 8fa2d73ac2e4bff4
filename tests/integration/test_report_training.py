"""The report of a training run, over runs that ended, go on, were interrupted, or came from records."""

import json
import os
import random
import re

import pytest
from typer.testing import CliRunner

from infra.store.location import Store
from memagent.errors import TrainingError, UsageError
from memagent.rl.config import load_recipe
from pipelines.cli.train import app, show_summary
from pipelines.report.training import draw, training_page, write_training
from pipelines.training.checkpoints import State
from pipelines.training.records import find_training, training_runs
from tests.support.made_up_training import end, keep, register, replayed, run, step, taught


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


@pytest.fixture
def ended(store):
    keep(store, "train-x", run(), State(step=20, best_step=5, done="20 steps"))
    end(store, "train-x", 20)
    record = {"incumbent": "toy@0000", "overall": {"candidate": 0.9, "incumbent": 0.8, "n": 200}}
    register(store, "toy@1111", status="promoted", reason="better: +0.100", promotion=json.dumps(record))
    return store


def cells(html, head):
    """The cells of the row that begins with `head`."""
    row = next(row for row in re.findall(r"<tr>(.*?)</tr>", html) if re.match(rf"<t[hd][^>]*>{re.escape(head)}<", row))
    return [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]


def test_a_run_that_ended_is_told_whole(ended):
    html = training_page(ended, "train-x")
    light = re.findall(r'<img alt="\w+" src="(data:image/svg\+xml;base64,[^"]+)"', html)
    dark = re.findall(r'\(prefers-color-scheme: dark\)" srcset="(data:image/svg\+xml;base64,[^"]+)"', html)
    assert len(light) == len(dark) == len({*light, *dark}) / 2 == 3
    assert cells(html, "Ended")[1] == "after 20 steps"
    assert cells(html, "Began with")[1] == "toy@0000" and cells(html, "Candidate")[1] == "toy@1111"
    assert cells(html, "Promotion check")[1] == "promoted: better: +0.100 (90.0% against 80.0% of toy@0000, n=200)"
    assert cells(html, "Data")[1] == "qa:contracts, needles" and cells(html, "Data version")[1] == "7"
    assert cells(html, "loss.clip_high")[1] == "0.28" and cells(html, "Seed")[1] == "0"
    assert cells(html, "Rollouts")[1] == "1,600" and cells(html, "Time of the steps")[1] == "13 min 20 s"
    assert cells(html, "Engines idle, of that time")[1] == "50%"
    assert "<h2>Steps</h2>" in html and cells(html, "20")[-1] == "40"


def test_validations_are_told_with_their_intervals(ended):
    rows = {row["step"]: row["validation"] for row in run() if "validation" in row}
    best = max(rows, key=lambda number: (rows[number]["reward"], -number))
    html = training_page(ended, "train-x")
    names = {0: "before", 20: "last"}
    names[best] = (
        ", ".join(filter(None, [names.get(best), "best"])) if best == 0 else "best, last" if best == 20 else "best"
    )
    for number, name in names.items():
        _, at, n, reward, low_high, *_ = cells(html, name)
        assert (at, n, reward) == (str(number), "64", f"{rows[number]['reward']:.3f}")
        low, high = map(float, low_high.split(" to "))
        assert low < rows[number]["reward"] < high
    assert cells(html, "word 1")[1] == f"{rows[0]['tasks']['word 1']:.3f}"


def test_nothing_is_fetched_and_no_script_runs(ended):
    html = training_page(ended, "train-x")
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in html
    assert "<script" not in html and not re.search(r"(src|href)=\"(?!data:)", html) and "url(" not in html


def test_texts_are_escaped(store):
    rows = run(1)
    rows[0]["validation"]["tasks"] = {"<script>alert(1)</script>\x1b[31m": 0.5}
    keep(store, "train-<b>", rows, State(step=1, done="<i>1"))
    end(store, "train-<b>", 1, data=['<img src="//x">'], parent="a&b", candidate="")
    html = training_page(store, "train-<b>")
    assert not re.search(r"<(script|b>train|i>1|img src=\"//)", html) and "\x1b" not in html
    assert "&lt;script&gt;alert(1)" in html and "a&amp;b" in html and "Training: train-&lt;b&gt;" in html
    assert cells(html, "Candidate")[1].startswith("none: nothing was better")


@pytest.mark.parametrize("saved", [None, State(step=5)])
def test_an_interrupted_run_is_told_as_far_as_it_came(store, saved):
    keep(store, "train-x", run(7), saved)
    html = training_page(store, "train-x")
    said = cells(html, "Ended")[1]
    assert "after step 7" in said and ("of step 5" if saved else "no checkpoint yet") in said
    assert "written when a run ends" in html and "Candidate" not in html and "The whole recipe" not in html


def test_a_run_that_was_given_more_steps_goes_on(ended):
    keep(ended, "train-x", run(25), State(step=25, done="20 steps"))
    assert cells(training_page(ended, "train-x"), "Ended")[1].startswith("not yet")


def test_a_candidate_is_found_though_the_run_wrote_no_row(store):
    keep(store, "train-x", run(3), State(step=3, done="no better for 5 validations"))
    register(store, "toy@2222")
    html = training_page(store, "train-x")
    assert cells(html, "Ended")[1] == "no better for 5 validations"
    assert (
        cells(html, "Candidate")[1] == "toy@2222"
        and cells(html, "Promotion check")[1] == "candidate (not compared yet)"
    )


def test_before_the_first_step_and_after_one(store):
    keep(store, "train-x", run(0))
    html = training_page(store, "train-x")
    assert html.count("<img ") == 1 and "None was taken yet." in html
    assert cells(html, "before, best, last")[1] == "0"
    keep(store, "train-x", run(1))
    assert training_page(store, "train-x").count("<img ") == 3


def test_a_replay_has_no_validation_and_no_engines(store):
    keep(store, "train-x-replay", replayed(), State(step=3, done="3 steps"))
    html = training_page(store, "train-x-replay")
    assert "There is none: rollouts came from records" in html and "Validation by task" not in html
    assert "Engines" not in html and html.count("<img ") == 3


def test_a_supervised_training_shows_its_loss_and_no_rewards(store, tmp_path):
    keep(store, "taught", taught(), State(step=3, done="3 steps"))
    end(store, "taught", 3, config={"recipe": load_recipe("sft").model_dump()})
    html = training_page(store, "taught")
    assert "Supervised training" in html and "DAPO" not in html and html.count("<img ") == 3
    assert "Reward" not in html and "Rollouts" not in html and "sampled" not in html
    assert cells(html, "Step") == ["Step", "NLL", "Entropy", "Norm", "Response", "Trained/s", "Seconds"]
    assert cells(html, "3")[1] == "0.3333" and cells(html, "Readings of the teacher")[1] == "240"
    assert cells(html, "Recipe")[1] == "32 readings of the teacher a step, 200 steps at most; learning rate 2e-05"
    assert "There is none: a teacher's training validates nothing" in html
    files = {path.stem: path for path in draw(taught(), tmp_path) if path.suffix == ".svg"}
    assert "Teacher: negative log-likelihood" in files["learning-curves"].read_text()


def test_the_summary_of_a_supervised_training_says_that_nothing_was_sampled(capsys):
    known = {"run_id": "taught", "parent": "toy@0", "ended": "3 steps", "validation": {"before": None, "best": None}}
    known |= {"candidate": "toy@1", "trajectories": 96.0, "trained_tokens": 5000.0}
    show_summary(known | {"config": {"recipe": load_recipe("sft").model_dump()}})
    said = capsys.readouterr().out
    assert re.search(r"readings of the teacher +│ 96 ", said) and re.search(r"tokens trained +│ 5,000 ", said)
    assert "sampled" not in said and "rollouts" not in said


def test_only_the_last_steps_are_listed(store):
    keep(store, "train-x", run(30))
    html = training_page(store, "train-x")
    assert "The last 20 of 30 steps" in html and cells(html, "11") and '<td class="n">10</td><td' not in html


def test_counts_that_begin_again_are_added_up(store):
    rows = run(6)
    for row, deaths in zip(rows[1:], [0, 2, 2, 0, 1, 1], strict=True):
        row["engine_deaths"] = deaths
    keep(store, "train-x", rows)
    assert cells(training_page(store, "train-x"), "Engines that died")[1] == "3"


def test_metrics_without_numbers_are_left_out(store):
    rows = [{"step": 0}, {"step": 1, "reward": float("nan"), "seconds": {}}, step(2, random.Random(0))]
    keep(store, "train-x", rows)
    assert cells(training_page(store, "train-x"), "1")[3] == "–"


def test_unknown_runs_are_refused_and_the_known_ones_named(store, tmp_path):
    with pytest.raises(UsageError, match=r"no training run 'last' in .* the newest are: none"):
        find_training(store, "last")
    keep(store, "train-a", run(1))
    keep(store, "train-b", run(1))
    with pytest.raises(UsageError, match=r"no training run '../train-a' .* did you mean 'train-a'"):
        write_training(store, "../train-a", tmp_path / "new" / "page.html")
    assert not (tmp_path / "new" / "page.html").exists()


def test_the_last_run_is_the_one_that_wrote_last(store, tmp_path):
    for seconds, name in ((30, "train-b"), (20, "train-a"), (40, "train-c")):
        keep(store, name, run(1))
        path = tmp_path / "store" / "training" / name / "metrics.jsonl"
        os.utime(path, (seconds, seconds))
    assert training_runs(store) == ["train-a", "train-b", "train-c"]
    assert find_training(store, "last") == "train-c"


def test_metrics_that_cannot_be_read_are_said(store):
    store.write_bytes(b'{"step": 1}\n{"st', "training", "train-x", "metrics.jsonl")
    with pytest.raises(TrainingError, match="metrics of run train-x cannot be read"):
        training_page(store, "train-x")


def test_the_command_writes_the_report(ended, tmp_path):
    page = tmp_path / "a" / "t.html"
    done = CliRunner().invoke(app, ["report", "last", "-o", str(page), "--store", ended.url])
    assert done.exit_code == 0 and done.output.strip() == str(page) and "train-x" in page.read_text()
