"""Tasks: the same by number, never longer than asked for, and answerable from what is left of the text."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.config import ReadingConfig
from memagent.errors import UsageError
from memagent.evaluation.texts import Sample
from memagent.quality.curation import Qa
from memagent.records import TextSpan
from memagent.rl.dataset import Cut, Mixed, make_task, nothing, scatter, window
from memagent.rl.sources import NEEDLES, ContractDataset, NeedleDataset, RowDataset, fit_rows, halves
from tests.support.texts import filler

MOST = 8


@pytest.fixture
def cut(tokenizer):
    return Cut(tokenizer, ReadingConfig(template="nano", segment_tokens=64, memory_tokens=64), MOST)


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(0)
    return [filler(rng, 600) for _ in range(30)]


def read(one):
    return "".join(segment.text for segment in one.segments)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_choice_is_in_order_and_keeps_what_is_wanted(data):
    count = data.draw(st.integers(1, 40))
    wanted = sorted(data.draw(st.sets(st.integers(0, count - 1), max_size=6)))
    most = data.draw(st.integers(1, 10))
    choose = data.draw(st.sampled_from([window, scatter]))
    chosen = choose(count, wanted, most, random.Random(data.draw(st.integers(0, 9))))
    assert 1 <= len(chosen) <= min(most, count) and chosen == sorted(set(chosen))
    assert chosen[0] >= 0 and chosen[-1] < count
    assert set(wanted[:most]) <= set(chosen)


def test_needles_are_the_same_by_number_and_can_be_answered(cut, texts):
    dataset = NeedleDataset(cut, texts, 3)
    first = [dataset.task(i) for i in range(40)]
    assert [read(one) for one in first] == [read(NeedleDataset(cut, texts, 3).task(i)) for i in range(40)]
    assert len({one.sample_id for one in first}) == 40
    assert read(dataset.task(0)) != read(NeedleDataset(cut, texts, 4).task(0))
    for one in first:
        assert 1 <= len(one.segments) <= MOST
        assert all(answer in read(one) for answer in one.gold), "what is asked for survived the cut"
        assert one.judge(" ".join(one.gold)) == 1.0 and one.judge("something else") == 0.0
    silent = [one for one in (dataset.task(i) for i in range(200)) if not one.gold[0]]
    assert all(one.judge("") == 1.0 and one.judge("1234567") == 0.0 for one in silent)
    assert {one.sample.task in NEEDLES for one in silent} == {True, False}, "RULER's kinds and our own"


@pytest.fixture
def folder(tmp_path):
    rng = random.Random(1)
    (tmp_path / "contracts").mkdir()
    rows = []
    for i in range(130):
        law = f"This Agreement shall be governed by the laws of {'Texas' if i % 2 else 'Ohio'}."
        text = f"SUPPLY AGREEMENT\n\n{filler(rng, 150)} {law} {filler(rng, 150)}"
        name = f"c{i:03}.txt"
        (tmp_path / "contracts" / name).write_text(text)
        for category, answer, spans in (
            ("Document Name", "SUPPLY AGREEMENT", ["SUPPLY AGREEMENT"]),
            ("Agreement Date", "", []),
            ("Governing Law", "Texas" if i % 2 else "Ohio", [law]),
        ):
            rows.append({"file": name, "category": category, "question": "?", "answer": answer, "spans": spans})
    (tmp_path / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_contracts_for_training_and_validation_and_the_held_out_are_apart(cut, folder):
    train, validation = (ContractDataset(cut, folder, 0, validation=side) for side in (False, True))
    names = [{dataset.task(i).sample.about["document"] for i in range(200)} for dataset in (train, validation)]
    assert not names[0] & names[1] and len(names[0] | names[1]) <= 130 - 80
    seen = set()
    for i in range(60):
        one = train.task(i)
        assert len(one.segments) <= MOST
        seen.add((one.sample.task, bool(one.gold[0])))
        if one.gold[0]:
            assert one.gold[0] in read(one) and one.judge(one.gold[0]) == 1.0 and one.judge("") == 0.0
        else:
            assert one.judge("") == 1.0 and one.judge("Texas") == 0.0
    assert ("Governing Law", False) in seen, "taken out of some"


def rows(n=6):
    return [
        Qa(
            f"What is the code of item {i}?",
            (str(1000 + i),),
            (f"hash{i}",),
            (f"doc{i}",),
            "gold",
            evidence=((f"hash{i}", 2),),
        )
        for i in range(n)
    ]


def test_rows_keep_their_evidence_and_are_all_seen_in_an_epoch(cut, texts):
    dataset = RowDataset(cut, rows(), lambda name: texts[int(name[4:])], 0)
    for epoch in range(2):
        seen = [dataset.task(epoch * 6 + i) for i in range(6)]
        assert sorted(one.question for one in seen) == sorted(row.question for row in rows())
        for one in seen:
            own = f"hash{one.question[-2]}"
            assert (own, 2) in {(s.content_hash, s.index) for s in one.segments} and len(one.segments) <= MOST
            inside = [s.index for s in one.segments if s.content_hash == own]
            assert inside == sorted(inside)
    first = [dataset.task(i).question for i in range(6)]
    assert first != [dataset.task(6 + i).question for i in range(6)], "each epoch has its own order"


def test_a_short_document_is_set_among_others(cut, texts):
    dataset = RowDataset(cut, rows(), lambda name: texts[int(name[4:])][:150], 0)
    short = [Qa("q?", ("a",), ("hash0",), ("doc0",), "gold"), *rows()[1:]]
    dataset = RowDataset(cut, short, lambda name: texts[int(name[4:])][:150], 0)
    others = [s.content_hash for i in range(30) for s in dataset.task(i).segments]
    assert len(set(others)) > 3 and any(len(dataset.task(i).segments) > 1 for i in range(30))


def audit(task, row, all_rows, texts):
    """What no task of harvested rows may violate."""
    by_name = {name: other for other in all_rows for name in other.stream}
    own = "".join(segment.text for segment in task.segments if segment.content_hash in row.stream)
    others = [segment for segment in task.segments if segment.content_hash not in row.stream]
    if row.answers != ("",):
        assert row.answers[0] in own, "the answer is in the text"
    for segment in others:
        rival = by_name[segment.content_hash]
        if rival.question == row.question and rival.answers != ("",):
            assert rival.answers[0] not in segment.text, "no distractor holds another answer to the question"


@pytest.mark.parametrize("evidence", ["right", "none", "of another segmentation"])
def test_the_answer_is_in_the_text_and_no_other_answer_beside_it(cut, texts, evidence):
    """The same questions are asked of every document, as a nightly digest does."""
    documents, made = {}, []
    for number in range(20):
        parts = texts[number].split(". ")
        answer = "" if number % 4 == 0 else f"{7000 + number}"
        if answer:
            parts.insert((number * 7) % len(parts), f"The fee of this contract is {answer} dollars")
        documents[f"hash{number}"] = ". ".join(parts)
        found = [s.index for s in cut(documents[f"hash{number}"]) if answer and answer in s.text]
        marks = {"right": found[:1], "none": [], "of another segmentation": [0 if found != [0] else 1]}[evidence]
        places = tuple((f"hash{number}", index) for index in marks) if answer else ()
        question = "What is the fee of this contract?"
        made.append(Qa(question, (answer,), (f"hash{number}",), (f"doc{number}",), "gold", evidence=places))
    dataset = RowDataset(cut, made, documents.__getitem__, 5)
    tasks = [dataset.task(number) for number in range(60)]
    for task in tasks:
        row = next(row for row in made if task.sample_id.startswith(f"qa-{row.qa_id[:12]}"))
        audit(task, row, made, documents)
    assert len({task.sample_id for task in tasks[:20]}) == 20, "all rows are usable"


def test_evidence_is_found_in_another_segmentation(tokenizer):
    """Harvested at 128 tokens, trained at 1,024, and the reverse. The answer's words are elsewhere too."""
    reading = {size: ReadingConfig(template="nano", segment_tokens=size, memory_tokens=64) for size in (128, 1024)}
    rng, documents, facts, rows = random.Random(3), {}, {}, []
    for number in range(24):
        parts = [f"{filler(rng, 60)} The fee of some year was {7000 + number}." for _ in range(60)]
        facts[f"hash{number}"] = fact = f"The fee of this contract is {7000 + number}."
        parts.insert(rng.randrange(60), fact)
        documents[f"hash{number}"] = " ".join(parts)
        start = documents[f"hash{number}"].index(fact)
        rows.append(
            Qa(
                "What is the fee of this contract?",
                (f"{7000 + number}",),
                (f"hash{number}",),
                (f"doc{number}",),
                "gold",
                spans=(TextSpan(f"hash{number}", start, start + len(fact)),),
            )
        )
    for size, trained in ((1024, reading[1024]), (128, reading[128])):
        dataset = RowDataset(Cut(tokenizer, trained, 3), rows, documents.__getitem__, 1)
        tasks = [dataset.task(i) for i in range(48)]
        assert len({task.sample_id for task in tasks}) == 48
        there = [next(name for name in facts if rows[int(name[4:])].answers == task.gold) for task in tasks]
        assert [facts[name] in read(task) for name, task in zip(there, tasks, strict=True)] == [True] * 48, size
    cut = Cut(tokenizer, reading[128], 3)
    marks = [[s.index for s in cut(documents[row.stream[0]]) if facts[row.stream[0]] in s.text] for row in rows]
    by_index = [
        replace(row, spans=(), evidence=tuple((row.stream[0], index) for index in held))
        for row, held in zip(rows, marks, strict=True)
    ]
    dataset = RowDataset(Cut(tokenizer, reading[1024], 3), by_index, documents.__getitem__, 1)
    assert all(dataset.task(i).gold[0] in read(dataset.task(i)) for i in range(48)), "of earlier versions: the words"


def test_a_verdict_is_found_by_its_evidence_alone(cut, texts):
    """Gold "no" is no word of the text: "there is no appeal" does not hold it."""
    text = f"There is no appeal. {texts[0]} {texts[1]} The lessee may not assign. {texts[2]}"
    start = text.index("The lessee")
    row = Qa("May it be assigned?", ("no",), ("h",), ("d",), "gold", spans=(TextSpan("h", start, start + 25),))
    dataset = RowDataset(cut, [row], lambda _: text, 0)
    assert all("The lessee may not" in read(dataset.task(i)) for i in range(20))
    with pytest.raises(UsageError, match="none of 1 rows can be trained on"):
        RowDataset(cut, [replace(row, spans=())], lambda _: text, 0).task(0)


def test_a_short_text_is_read_whole_where_it_is_not_known_what_part_answers(cut, texts):
    row = Qa("How long?", ("a fortnight",), ("h",), ("d",), "feedback")
    text = texts[0][:1200]
    dataset = RowDataset(cut, [row], lambda _: text, 0)
    assert 3 < len(cut(text)) <= MOST and all(read(dataset.task(i)) == text for i in range(20))


def test_what_a_row_marks_says_its_answer_in_other_words(cut, texts):
    text = f"{texts[0]} It lasts fourteen days. {texts[1]}"
    start = text.index("It lasts")
    row = Qa("How long?", ("a fortnight",), ("h",), ("d",), "gold", spans=(TextSpan("h", start, start + 23),))
    dataset = RowDataset(cut, [row], lambda _: text, 0)
    assert {dataset.task(i).sample.facts for i in range(9)} == {("It lasts fourteen days.",)}


def test_texts_that_fit_are_read_whole_and_alone(cut, texts):
    short = [Qa(f"q{i}?", (f"a{i}",), (f"x{i}", f"y{i}"), (f"d{i}",), "gold") for i in range(4)]
    dataset = RowDataset(cut, short, lambda name: f"{name}. a{name[1]} {texts[int(name[1])][:300]} ", 0, alone=True)
    for task in (dataset.task(i) for i in range(8)):
        assert {s.content_hash[1] for s in task.segments} == {task.question[1]}
        assert read(task).startswith("x") and f"y{task.question[1]}. " in read(task)
    long = [Qa("q?", ("the answer 77",), ("h",), ("d",), "gold")]
    dataset = RowDataset(cut, long, lambda _: f"{texts[0]} {texts[1]} the answer 77. {texts[2]}", 0, alone=True)
    assert all(len(dataset.task(i).segments) == MOST and "77" in read(dataset.task(i)) for i in range(8))


def test_a_long_text_whose_answer_is_nowhere_is_left_out(cut, texts):
    lost = Qa("What was it?", ("nowhere to be found",), ("hash0",), ("doc0",), "gold")
    dataset = RowDataset(cut, [lost, *rows()[1:]], lambda name: texts[int(name[4:])], 0)
    assert "What was it?" not in {dataset.task(number).question for number in range(30)}
    with pytest.raises(UsageError, match="none of 1 rows can be trained on"):
        RowDataset(cut, [lost], lambda name: texts[0], 0).task(0)


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("5", ["Chapter 15 of 25", "15", "5, 6, 7 and 8", "not 5", "I do not know", "", "What is it?"]),
        ("no", ["I do not know", "not stated", "yes or no", "yes", "none", "", "Is it so?"]),
        ("Delaware", ["Delaware, Nevada or Texas", "not Delaware", "the State", "", "I do not know", "Nevada"]),
    ],
)
def test_only_the_answer_itself_is_paid(cut, texts, gold, wrong):
    row = Qa("What is it?", (gold,), ("hash0",), ("doc0",), "feedback")
    task = RowDataset(cut, [row], lambda name: f"It is {gold}.", 0).task(0)
    assert task.judge(gold) == task.judge(f" {gold}. ") == 1.0
    assert [task.judge(answer) for answer in wrong] == [0.0] * len(wrong)


def test_rows_that_teach_nothing_are_refused():
    rates = (None, 0.0, 0.5, 1.0)
    rows = [Qa(f"q{rate}", (f"a{rate}",), ("h",), ("d",), "gold", pass_rate=rate) for rate in rates]
    assert [row.pass_rate for row in fit_rows(rows)] == [None, 0.5]
    with pytest.raises(UsageError, match="always right or always wrong"):
        fit_rows([Qa("q", ("a",), ("h",), ("d",), "gold", pass_rate=1.0)])
    with pytest.raises(UsageError, match="there are no rows"):
        fit_rows([])
    with pytest.raises(UsageError, match="same answer"):
        fit_rows([Qa(f"q{i}", ("a",), ("h",), ("d",), "gold") for i in range(3)])
    with pytest.raises(UsageError, match="no rows"):
        RowDataset(None, [], str, 0)


def test_several_courses_take_turns(cut, texts):
    both = Mixed((NeedleDataset(cut, texts, 1), RowDataset(cut, rows(), lambda n: texts[int(n[4:])], 1)), (1.0, 3.0), 0)
    kinds = [both.task(i).sample_id.split("-")[0] for i in range(100)]
    assert 10 < kinds.count("needles") < 45
    assert both.task(7) == both.task(7)


def test_needles_that_cannot_fit_are_said(tokenizer, texts):
    small = Cut(tokenizer, ReadingConfig(template="nano", segment_tokens=16, memory_tokens=8, answer_tokens=8), 1)
    with pytest.raises(UsageError, match=r"raise rollout\.segments"):
        NeedleDataset(small, texts, 0).task(0)


def test_an_exercise_is_small_and_plain(cut):
    text = "One. " * 400 + "The code of Anna is 77. " + "Two. " * 400
    sample = Sample("x", "t", 0, lambda: iter((text,)), "q?", ("77",), "all", ("The code of Anna is 77.",))
    one = make_task(sample, "n", cut(text), 2, random.Random(0))
    assert one.sample.pieces is nothing and "77" in read(one) and len(one.segments) <= 2


def test_texts_of_validation_are_not_those_of_training(texts):
    train, validation = halves(texts)
    assert not set(train) & set(validation) and len(train) + len(validation) == len(texts) and validation
