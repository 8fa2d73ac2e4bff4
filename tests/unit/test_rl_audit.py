"""The audit of tasks finds what would be taught wrongly, and says nothing of the data sets of the product."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from memagent.config import ReadingConfig
from memagent.errors import UsageError
from memagent.evaluation.texts import Sample
from memagent.quality.curation import Qa
from memagent.rl.audit import audit, wrong_answers
from memagent.rl.dataset import Cut, Mixed, Task, nothing
from memagent.rl.reward import FUNCTIONS, Answered, strict_score
from memagent.rl.sources import ContractDataset, NeedleDataset, RowDataset
from tests.support.texts import filler
from tests.unit.test_rl_datasets import folder  # noqa: F401  a fixture

EXACT = {"exact": 1.0}
GOLD = ["5", "no", "yes", "Delaware", "May 8, 2014", "the lessor", "12.5", "1,024", "Ann B. Clark", "7 days", ""]


@pytest.fixture
def cut(tokenizer):
    return Cut(tokenizer, ReadingConfig(template="nano", segment_tokens=64, memory_tokens=64), 8)


@dataclass
class Fixed:
    """The same tasks over and over."""

    tasks: list[Task]
    others: tuple[Qa, ...] = ()

    def task(self, number: int) -> Task:
        return self.tasks[number % len(self.tasks)]

    def rivals(self, task: Task) -> list[Qa]:
        return list(self.others)

    def left_out(self, count: int) -> tuple[int, int]:
        return 0, count


def made(cut, gold, text, match="exact", question="What is it?", **about):
    sample = Sample("s", "t", 0, nothing, question, gold, match, about=about)
    return Task(sample, tuple(cut(text)))


@pytest.mark.parametrize("gold", GOLD)
def test_twenty_kinds_of_wrong_answers_are_not_paid_and_the_gold_is(cut, gold):
    text = f"It was in Chapter 15 of 25. It is {gold or 'not told'}. Nevada and Texas are states."
    task = RowDataset(cut, [Qa("What is it?", (gold,), ("h",), ("d",), "feedback")], lambda _: text, 0).task(0)
    tried = wrong_answers(task, ["Nevada", "17"])
    assert len(tried) >= 20 and len(set(tried.values())) >= 20
    assert all(task.judge(answer) == 0.0 for answer in tried.values()), tried
    paid = {kind: FUNCTIONS["exact"](Answered(said, bool(said), task.gold)) for kind, said in tried.items()}
    assert not any(paid.values()), paid
    assert task.judge(gold) == FUNCTIONS["exact"](Answered(gold, bool(gold), task.gold)) == 1.0


def test_a_number_is_no_other_number():
    five = Sample("s", "t", 0, nothing, "q?", ("15",), "exact")
    assert [strict_score(five, said) for said in ("15", "15.", " 15.0 ", "$15", "1.5", "-15", "115")] == [
        1,
        1,
        0,
        1,
        0,
        0,
        0,
    ]
    thousand = replace(five, answers=("1,024",))
    assert [strict_score(thousand, said) for said in ("1024", "1,024", "10.24")] == [1, 1, 0]


def test_a_list_is_paid_by_its_share_and_for_nothing_beside_it():
    several = Sample("s", "t", 0, nothing, "Which codes have elm and oak?", ("17", "4-2"), "all")
    said = ["17 and 4-2", "4-2, 17", "elm: 17, oak: 4-2", "17", "17, 4-2, 9", "17 17 4-2", "117 and 4-2", "none"]
    assert [strict_score(several, one) for one in said] == [1, 1, 1, 0.5, 0, 0, 0, 0]
    assert [FUNCTIONS["exact"](Answered(one, True, ("17", "4-2"), every=True)) for one in ("17", "17, 4-2")] == [0, 1]
    assert FUNCTIONS["exact"](Answered("17", True, ("17", "4-2"))) == 1.0, "either is right"


@pytest.mark.parametrize(
    ("category", "gold", "right", "wrong"),
    [
        ("Agreement Date", "5/8/14", ["May 8, 2014", "the 8th day of May, 2014"], ["not May 8, 2014", "5/8/14 5/8/14"]),
        ("Agreement Date", "12/16/04", ["12/16/2004"], ["112/16/04", "12/16/04 or 1/1/05", "It was 12/16/04, I think"]),
        ("Governing Law", "New York", ["the laws of the State of New York"], ["New York or Texas", "not New York"]),
        ("Document Name", "SUPPLY AGREEMENT", ["Supply Agreement"], ["Supply Agreement, a license and more"]),
        ("Governing Law", "", [""], ["Texas"]),
    ],
)
def test_a_contracts_answer_may_be_in_any_form_with_nothing_beside_it(category, gold, right, wrong):
    sample = Sample("s", "t", 0, nothing, "q?", (gold,), "contract", about={"category": category})
    assert [strict_score(sample, said) for said in right] == [1.0] * len(right)
    assert [strict_score(sample, said) for said in wrong] == [0.0] * len(wrong)


def test_the_data_sets_of_the_product_have_nothing_to_answer_for(cut, folder, tokenizer):  # noqa: F811
    rng = Random(0)
    texts = [filler(rng, 600) for _ in range(20)]
    documents = {
        f"h{i}": f"{texts[i]} The fee of this is {100 + i}. {texts[i]}" if i % 3 else texts[i] for i in range(20)
    }
    rows = [Qa("What is the fee?", (f"{100 + i}" if i % 3 else "",), (f"h{i}",), (f"d{i}",), "gold") for i in range(20)]
    harvested = RowDataset(cut, rows, documents.__getitem__, 0)
    every = (NeedleDataset(cut, texts, 0), ContractDataset(cut, folder, 0), harvested)
    for weights in (EXACT, {"task": 1.0}, {"task": 1.0, "format": 0.1, "abstention": 0.2}):
        report = audit([Mixed(every, (1.0,) * 3, 0)], weights, 40)
        assert report.refuse({}, weights) == [] and report.tasks == 120 and report.least_kinds >= 20, report


def test_an_answer_that_is_not_in_the_text_stops_the_training_unless_a_share_is_allowed(cut):
    tasks = [made(cut, ("Ann",), f"It is {name}.") for name in ("Ann", "Ann", "Ann", "Bob")]
    report = audit([Fixed(tasks)], EXACT, 8)
    with pytest.raises(
        UsageError, match=r"the answer is not in the text in 2 of 8 tasks \(task s: 'What is it\?', 'Ann'\)"
    ):
        report.refuse({}, EXACT)
    with pytest.raises(UsageError, match=r"--set audit\.allowed\.gold-missing=0\.25"):
        report.refuse({"gold-missing": 0.2}, EXACT)
    assert report.refuse({"gold-missing": 0.25}, EXACT) == []
    fact = replace(tasks[3], sample=replace(tasks[3].sample, facts=("It is Bob.",)))
    assert not audit([Fixed([fact])], EXACT, 4).violating, "in other words"


def test_an_answer_at_the_end_of_a_document_is_in_the_text(cut):
    rows = [Qa("What is it?", ("502",), ("a", "b"), ("a",), "gold"), Qa("Who?", ("Ann",), ("b", "a"), ("a",), "gold")]
    data = RowDataset(cut, rows, {"a": "The code is 502.", "b": "Payment is by Ann"}.__getitem__, 0, alone=True)
    report = audit([data], EXACT, 4)
    assert not report.violating, report.examples


def test_rows_that_cannot_be_used_are_said(cut):
    text = filler(Random(0), 2000)
    rows = [Qa("What is it?", ("here",), ("a",), ("a",), "gold"), Qa("Who?", ("nowhere",), ("b",), ("b",), "gold")]
    data = RowDataset(cut, rows, {"a": f"It is here. {text}", "b": text}.__getitem__, 0, alone=True)
    report = audit([data], EXACT, 8)
    assert report.refuse({}, EXACT) == [] and report.left_out[0].startswith("1 of the first 2 rows are left out")


def test_a_distractor_that_answers_the_question_otherwise_is_found(cut):
    own, other = cut("It is Ann. "), [replace(s, content_hash="other") for s in cut("It is Bob. ")]
    task = replace(made(cut, ("Ann",), "It is Ann. "), segments=(*own, *other))
    rival = Qa("What is it?", ("Bob",), ("other",), ("d",), "gold")
    with pytest.raises(
        UsageError, match=r"another text answers the same question otherwise in 4 of 4 .*'Bob' beside 'Ann'"
    ):
        audit([Fixed([task], (rival,))], EXACT, 4).refuse({}, EXACT)
    elsewhere = replace(rival, answers=("Carl",))
    assert audit([Fixed([task], (elsewhere,))], EXACT, 4).refuse({}, EXACT) == []


def test_a_reward_that_pays_for_more_is_warned_of_by_kind(cut, monkeypatch):
    data = [Fixed([made(cut, ("the red house",), "It is the red house.")])]
    (warning,) = audit(data, {"f1": 1.0}, 4).refuse({}, {"f1": 1.0})
    assert "a wrong answer is paid in 4 of 4 tasks" in warning and "a longer list (4)" in warning
    assert "twice (4)" in warning and "does not know" not in warning
    (constant,) = audit(data, {"format": 1.0, "f1": 0.0}, 4).refuse({}, {"format": 1.0, "f1": 0.0})
    assert "the right answer is not paid more than nonsense" in constant
    monkeypatch.setattr("memagent.rl.dataset.strict_score", lambda sample, answer: float(sample.answers[0] in answer))
    with pytest.raises(
        UsageError, match=r"a wrong answer is paid in 4 of 4 tasks \(task s: .* is paid 1 where the gold"
    ):
        audit(data, {"task": 1.0}, 4).refuse({}, {"task": 1.0})
