"""What a training prints while it runs."""

from pipelines.cli.train import line, progress

SCORES = {"reward": 0.75, "strict": 0.5, "n": 40}


def test_the_weights_before_the_first_step_have_a_line_of_their_own():
    assert line({"step": 0, "validation": SCORES}) == "step    0  validation 0.750 strict 0.500 (n=40)"
    taught = {"step": 3, "nll": 0.5, "entropy": 0.1, "gradient_norm": 2.0, "seconds": {"learn": 3.0}}
    assert line(taught).startswith("step    3  nll 0.5000  entropy 0.100  norm 2.00  3")


def test_without_a_terminal_what_comes_before_the_first_step_is_said(capsys):
    with progress(quiet=False) as show:
        show({"stage": "starting the engines and the learner", "step": 0, "steps": 2})
        show({"stage": "validating", "step": 0, "steps": 2})
        show({"stage": "step", "step": 0, "steps": 2, "row": {"step": 0, "validation": SCORES}})
        show({"stage": "learning", "step": 1, "steps": 2})
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["starting the engines and the learner", "validating"]
    assert len(lines) == 3 and lines[2].startswith("step    0  validation 0.750")
