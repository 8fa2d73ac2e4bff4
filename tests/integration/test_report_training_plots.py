import math
import random
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from memagent.errors import UsageError
from memagent.evaluation.stats import mean
from pipelines.report.panels import interval, series
from pipelines.report.plots import health_curves, learning_curves, time_curves
from tests.support.made_up_training import PHASES, replayed, run, step

SCORES = ["Reward", "Strict score (%)", "Lenient score (%)"]
EXPECTED = {
    "learning-curves": (learning_curves, [f"{what}: {name}" for what in ("Rollouts", "Validation") for name in SCORES]),
    "health-curves": (
        health_curves,
        [
            "Entropy (nats a token)",
            "Gradient norm",
            "Groups with signal (%)",
            "Clipped tokens (%)",
            "low",
            "high",
            "dual",
            "Tokens of a response",
            "all",
            "memories",
            "0.015: healthy",
            "0.2: stale weights",
        ],
    ),
    "time-curves": (
        time_curves,
        ["Rollouts (tokens/s)", "Learner (tokens/s)", "Share of a step (%)", *PHASES],
    ),
}


def labels(path):
    root = ET.fromstring(path.read_text())
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_picture_is_made_labelled_and_the_same_each_time(tmp_path, name):
    draw, expected = EXPECTED[name]
    paths = draw(run(), tmp_path / "new" / "folder")
    assert [path.name for path in paths] == [f"{name}.svg", f"{name}.png"]
    assert set(expected) <= set(labels(paths[0]))
    with Image.open(paths[1]) as image:
        assert image.format == "PNG" and image.width == 1000
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20
    again = draw([dict(reversed(row.items())) for row in run()], tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_long_runs_are_smoothed_and_it_is_said(tmp_path):
    said = [labels(learning_curves(run(steps), tmp_path)[0]) for steps in (5, 40)]
    assert ["mean of the last 5 steps" in one for one in said] == [False, True]


def test_kl_is_drawn_only_where_it_was_on(tmp_path):
    rows = run()
    assert not any("KL" in label for label in labels(health_curves(rows, tmp_path)[0]))
    rows[3]["kl"] = 0.01
    assert any("KL" in label for label in labels(health_curves(rows, tmp_path)[0]))


def test_one_step_is_enough(tmp_path):
    rows = [step(1, random.Random(0), logprob_diff=0.0)]
    for draw, _ in EXPECTED.values():
        svg, _ = draw(rows, tmp_path)
        assert "1" in labels(svg)


def test_a_replay_has_neither_validation_nor_rollout_speed(tmp_path):
    said = labels(learning_curves(replayed(), tmp_path)[0])
    assert "Rollouts: Reward" in said and "Validation: Reward" not in said
    assert "Rollouts (tokens/s)" not in labels(time_curves(replayed(), tmp_path)[0])


def test_before_the_first_step_there_are_only_validations(tmp_path):
    svg, _ = learning_curves(run(0), tmp_path)
    assert "Validation: Reward" in labels(svg) and "Rollouts: Reward" not in labels(svg)
    for draw in (health_curves, time_curves):
        with pytest.raises(UsageError, match="no step was taken"):
            draw(run(0), tmp_path)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no metrics"):
        learning_curves([], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_series_leave_out_what_is_not_known():
    rows = [
        {"step": 2, "a": 1, "b": {"c": 0.5}},
        {"step": 1, "a": math.nan},
        {"step": 3, "a": None, "b": 4},
        {"step": 0, "a": "x"},
    ]
    assert series(rows, "a") == {2: 1.0} and series(rows, "b/c") == {2: 0.5} and series(rows, "d") == {}


def test_intervals_are_those_of_the_scores():
    score = mean("", [1.0] * 48 + [0.0] * 16)
    assert interval(0.75, 64) == pytest.approx((score.low, score.high))
    assert interval(1.2, 64) is None and interval(-0.1, 64) is None and interval(0.5, 0) is None
