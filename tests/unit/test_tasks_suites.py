"""Suites and what their answers are worth."""

import json
from pathlib import Path

import pytest

from memagent.errors import UsageError
from memagent.evaluation.grading import judge, lines, not_found, overall
from memagent.evaluation.loaders import load_samples
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import Sample
from pipelines.stages.make_samples import write_files

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def asked(tmp_path):
    """A file of SQuAD's format and one of HotpotQA's; every answer stands in one paragraph alone."""
    squad = {"version": "1", "data": []}
    hotpot = []
    for i in range(6):
        said = f"The mayor of town {i} is called Agatha Number{i}. The town has a well and a wall."
        answer = {"text": f"Agatha Number{i}", "answer_start": said.index("Agatha")}
        question = {"id": f"q{i}", "question": f"Who is the mayor of town {i}?", "answers": [answer]}
        squad["data"].append({"title": f"Town {i}", "paragraphs": [{"context": said, "qas": [question]}]})
        context = [[f"Man {i}", [f"Agatha Number{i} has a dog.", f" It is called Rex{i}."]]]
        context.append([f"Town {i}", [f"The mayor of town {i} is Agatha Number{i}.", " There is a well."]])
        supporting = [[f"Town {i}", 0], [f"Man {i}", 1]]
        hotpot.append(
            {"_id": f"h{i}", "question": f"How is the dog of town {i}'s mayor called?", "answer": f"Rex{i}"}
            | {"context": context, "supporting_facts": supporting}
        )
    paths = tmp_path / "squad.json", tmp_path / "hotpot.json"
    for path, rows in zip(paths, (squad, hotpot), strict=True):
        path.write_text(json.dumps(rows))
    return tuple(str(path) for path in paths)


def test_question_kinds_hide_a_files_questions_among_its_paragraphs(tokenizer, asked):
    suite = Suite("ruler", ("qa_1", "qa_2"), (500,), n=100, data=asked)
    suite.check()
    made = {group.kind: list(group.samples(tokenizer, [])) for group in suite.groups()}
    assert {kind: len(samples) for kind, samples in made.items()} == {"qa_1": 6, "qa_2": 6}
    for i, (one, two) in enumerate(zip(made["qa_1"], made["qa_2"], strict=True)):
        assert one.answers == (f"Agatha Number{i}",) and one.text().count(one.answers[0]) == 1
        assert len(two.facts) == 2 and all(fact in two.text() for fact in two.facts)
        assert 400 < len(tokenizer.encode(one.text())) <= 500
    assert len(Suite("ruler", (), (500,), data=asked[:1]).groups()) == 12


def test_a_made_suite_is_written_and_read_back(tokenizer, asked, tmp_path):
    suite = Suite("ruler", ("qa_1", "vt"), (400, 800), n=3, data=asked[:1])
    written = write_files(suite, (str(ROOT / "README.md"),), tokenizer, tmp_path / "ruler")
    assert [(str(path.relative_to(tmp_path)), count) for path, count in written] == [
        (f"ruler/{length}/data/{kind}/validation.jsonl", 3) for length in (800, 400) for kind in ("vt", "qa_1")
    ]
    back = [sample.sample_id for path, _ in written for sample in load_samples(path)]
    assert back == [sample.sample_id for group in suite.groups() for sample in group.samples(tokenizer, [])]
    with pytest.raises(UsageError, match="--write"):
        write_files(Suite("files", data=asked), (), tokenizer, tmp_path)


@pytest.mark.parametrize(
    ("suite", "says"),
    [
        (Suite("needles"), "--lengths"),
        (Suite("ruler", ("qa_1",), (1000,)), "SQuAD"),
        (Suite("needles", ("qa_1",), (1000,)), "no kind 'qa_1' in suite needles"),
        (Suite("needles", lengths=(1000,), data=("a.json",)), "takes no --data"),
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
    assert judged[1].answer is None


def test_yes_and_no_are_balanced_and_silence_has_its_line():
    def clause(name, gold, answer):
        about = {"category": "Anti-Assignment", "kind": "yes/no"}
        return judge(sample(name, "Anti-Assignment", (gold,), "contract", 0, **about), answer)

    judged = [clause("a", "Yes", "Yes"), clause("b", "Yes", "No"), clause("c", "No", "No")]
    judged.append(judge(sample("d", "Parties", ("",), "contract", 0, category="Parties"), ""))
    table = {line.task: line.score for line in lines(judged)}
    assert table["yes/no"].metric == "balanced accuracy" and table["yes/no"].value == 0.75
    assert table["not in the text"].value == 1.0 and table["not in the text"].n == 1


def test_wordings_of_no_training_have_their_line():
    told = [judge(sample(str(i), "a", taught=i > 0), answer) for i, answer in enumerate(("7", "8", "8"))]
    table = {line.task: (line.score.value, line.score.n) for line in lines(told)}
    assert table == {"a": (1 / 3, 3), "wordings in no training": (1.0, 1)}
    assert [line.task for line in lines(told[1:])] == ["a"] and [line.task for line in lines(told[:1])] == ["a"]
