"""Suites and what their answers are worth."""

import json

import pytest

from memagent.errors import UsageError
from memagent.tasks.judging import judge, lines, not_found, overall, row
from memagent.tasks.samples import Sample
from memagent.tasks.suites import Suite

TEXTS = ["The mill stands by the river. It was built long ago, of stone. Few people know who owned it. " * 60]


def sample(name="a", task="t", answers=("7",), match="part", length=100, **about):
    return Sample(name, task, length, lambda: iter(()), "?", answers, match, about=about)


def ids(suite, tokenizer):
    return [s.sample_id for group in suite.groups() for s in group.samples(tokenizer, TEXTS)]


def test_a_made_suite_has_n_of_each_kind_and_length_the_longest_first(tokenizer):
    suite = Suite("needles", kinds=("niah_single_1", "niah_multikey_1"), lengths=(300, 600), n=3)
    found = ids(suite, tokenizer)
    assert len(found) == len(set(found)) == 12
    assert [group.length for group in suite.groups()] == [600, 600, 300, 300]


def test_more_samples_begin_with_the_same_ones(tokenizer):
    few, more = (Suite("needles", ("niah_single_2",), (400,), n=n) for n in (2, 5))
    texts = [[s.text() for g in suite.groups() for s in g.samples(tokenizer, TEXTS)] for suite in (few, more)]
    assert texts[1][:2] == texts[0]
    assert few.corpus(tokenizer, TEXTS) == more.corpus(tokenizer, TEXTS)
    assert few.corpus(tokenizer, TEXTS) != few.corpus(tokenizer, TEXTS[:0])


def test_a_control_has_ids_of_its_own(tokenizer):
    plain = Suite("needles", ("niah_single_1",), (300,), n=2)
    removed = Suite("needles", ("niah_single_1",), (300,), n=2, control="answer-removed")
    assert not set(ids(plain, tokenizer)) & set(ids(removed, tokenizer))
    for one in removed.groups()[0].samples(tokenizer, TEXTS):
        assert one.answers[0] not in one.text()


def test_files_are_read_up_to_n_and_named_by_their_file(tokenizer, tmp_path):
    file = tmp_path / "long.json"
    rows = [
        {"context": f"The key is {i}.", "input": "What is the key?", "answers": [str(i)], "index": i} for i in range(4)
    ]
    file.write_text(json.dumps(rows))
    found = ids(Suite("files", n=3, data=(str(file),)), tokenizer)
    assert len(found) == 3 and all(name.startswith("long-") for name in found)


def test_a_file_that_changed_is_another_corpus(tokenizer, tmp_path):
    file = tmp_path / "a.json"
    file.write_text("[]")
    suite = Suite("files", data=(str(file),))
    first = suite.corpus(tokenizer, [])
    assert Suite("files", n=7, data=(str(file),)).corpus(tokenizer, []) == first
    assert Suite("files", seed=1, data=(str(file),)).corpus(tokenizer, []) != first
    file.write_text("[1]")
    assert suite.corpus(tokenizer, []) != first
    with pytest.raises(UsageError, match=r"none\.json"):
        Suite("files", data=(str(tmp_path / "none.json"),)).corpus(tokenizer, [])


@pytest.mark.parametrize(
    ("suite", "says"),
    [
        (Suite("needles"), "--lengths"),
        (Suite("ruler", ("qa_1",), (1000,)), "qa_1"),
        (Suite("contracts"), "--data"),
        (Suite("tales"), "no suite 'tales'"),
        (Suite("needles", lengths=(100,), control="nothing"), "no control"),
    ],
)
def test_what_does_not_fit_together_is_refused(suite, says):
    with pytest.raises(UsageError, match=says):
        suite.check()


def test_answers_are_judged_by_the_samples_own_measure():
    assert judge(sample(), "it is 7").score == 1.0 and judge(sample(), "it is 7").exact == 0.0
    assert judge(sample(answers=("7", "8"), match="all"), "7").score == 0.5
    assert judge(sample(answers=("",)), "").score == 1.0 and judge(sample(answers=("",)), "7").score == 0.0
    assert judge(sample(), None).score == 0.0 and judge(sample(), "").score == 0.0
    date = sample(answers=("5/8/14",), match="contract", category="Agreement Date")
    assert judge(date, "May 8, 2014").score == 1.0


def test_lines_count_failures_and_hold_every_sample_once():
    judged = [
        judge(sample(str(i), task, length=length), answer)
        for i, (task, length, answer) in enumerate(
            [("a", 100, "7"), ("a", 100, None), ("b", 100, "8"), ("b", 200, "7")]
        )
    ]
    table = {(line.task, line.length): (line.score.value, line.score.n, line.failed) for line in lines(judged)}
    assert table == {
        ("a", 100): (0.5, 2, 1),
        ("b", 100): (0.0, 1, 0),
        ("b", 200): (1.0, 1, 0),
        ("all", 100): (1 / 3, 3, 1),
        ("all", 200): (1.0, 1, 0),
    }
    assert overall(judged).value == 0.5 and not_found(judged).value == 0.0
    assert row(judged[1])["answer"] is None


def test_yes_and_no_are_balanced_and_silence_has_its_line():
    def clause(name, gold, answer):
        about = {"category": "Anti-Assignment", "kind": "yes/no"}
        return judge(sample(name, "Anti-Assignment", (gold,), "contract", 0, **about), answer)

    judged = [clause("a", "Yes", "Yes"), clause("b", "Yes", "No"), clause("c", "No", "No")]
    judged.append(judge(sample("d", "Parties", ("",), "contract", 0, category="Parties"), ""))
    table = {line.task: line.score for line in lines(judged)}
    assert table["yes/no"].metric == "balanced accuracy" and table["yes/no"].value == 0.75
    assert table["not in the text"].value == 1.0 and table["not in the text"].n == 1
