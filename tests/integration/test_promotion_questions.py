"""What a promotion check asks: no document on two sides, people's gold alone, and its own file."""

import json
from datetime import timedelta

import pytest

from infra.store.delta import Table
from infra.store.documents import DocumentWriter
from infra.store.location import Corpus, Store
from infra.store.qa import read_qa, read_rows, write_qa
from infra.store.runs import write_run
from infra.store.schemas import POLICIES_OF, now
from memagent.errors import UsageError
from memagent.quality.curation import SPLITS, Qa, split_of
from memagent.records import text_hash
from memagent.rl.promotion import PromotionSpec
from pipelines.promotion_questions import find_questions, trained_files

SPEC = PromotionSpec(kinds=(), corpora=("a",))
EARLIER = now() - timedelta(days=1)


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


def documents(store, corpus, names):
    """Write documents; return each one's content hash."""
    writer = DocumentWriter(Corpus(store, corpus), "run", now())
    texts = {name: f"The pass number of {name} is {i}." for i, name in enumerate(names)}
    for name, text in texts.items():
        stands = {"doc_id": name, "content_hash": text_hash(text), "state": "present", "chars": len(text)}
        writer.document({**stands, "title": "", "source": name, "source_stamp": "", "first_seen": now()}, text)
    writer.commit()
    return {name: text_hash(text) for name, text in texts.items()}


def row(hashes, *names, question="What is the pass number?", source="gold", answer="7"):
    return Qa(question, (answer,), tuple(hashes[name] for name in names), documents=names, source=source)


def of_side(side, count, start=0):
    """Names of documents of a split."""
    return [name for name in (f"d{i}" for i in range(start, start + 4000)) if split_of([name]) == side][:count]


def version(run_id, policy_id="p@1", parent="nano@0", **more):
    """A row of a version."""
    texts = dict.fromkeys(("name", "path", "reason"), "p") | {"config": "{}", "metrics": "{}", "promotion": None}
    stands = {"corpus": POLICIES_OF, "status": "candidate", "data_version": None, "changed_at": now()}
    return {**texts, **stands, "run_id": run_id, "policy_id": policy_id, "parent": parent, **more}


def asked_texts(questions):
    return set(questions.texts)


def test_no_document_is_on_two_sides(store):
    names = [f"d{i}" for i in range(400)]
    hashes = documents(store, "a", names)
    write_qa(Corpus(store, "a"), [row(hashes, name) for name in names], "harvest")
    sides = {side: {name for one in read_qa(store, "a", side) for name in one.stream} for side in SPLITS}
    assert all(sides.values()) and sum(map(len, sides.values())) == len(set.union(*sides.values())) == 400
    decides, chooses = find_questions(store, SPEC, "promotion"), find_questions(store, SPEC, "validation")
    assert asked_texts(decides) == sides["promotion"] and asked_texts(chooses) == sides["validation"]
    lines = [json.loads(line) for line in decides.path.read_text().splitlines()]
    assert len(lines) == len(sides["promotion"]) == decides.counts["asked"]
    assert {text_hash(line["input"][: line["text_end"]]) for line in lines} == sides["promotion"]


def test_a_promotion_check_reads_no_row_of_another_split(store, monkeypatch):
    hashes = documents(store, "a", [name for side in SPLITS for name in of_side(side, 3)])
    write_qa(Corpus(store, "a"), [row(hashes, name) for name in hashes], "harvest")
    asked_for = []

    def read(store, corpus, splits):
        asked_for.append((corpus, tuple(splits)))
        return read_rows(store, corpus, splits)

    monkeypatch.setattr("pipelines.promotion_questions.read_rows", read)
    found = find_questions(store, SPEC, "promotion")
    assert asked_texts(found) == {hashes[name] for name in of_side("promotion", 3)}
    assert asked_for == [("a", ("promotion",))]


def test_only_what_people_vouch_for_is_asked(store):
    one, two, three, four = of_side("promotion", 4)
    hashes = documents(store, "a", [one, two, three, four])
    rows = [
        row(hashes, name, source=source)
        for name, source in zip((one, two, three, four), ("gold", "feedback", "agreement", "generated"), strict=True)
    ]
    write_qa(Corpus(store, "a"), rows, "harvest")
    found = find_questions(store, SPEC, "promotion")
    assert asked_texts(found) == {hashes[one], hashes[two]}
    assert found.counts == {"there": 4, "asked": 2, "unvouched": 2, "trained_on": 0, "without_text": 0}


def test_a_text_that_another_corpus_trains_on_is_not_asked(store):
    (kept, copied), (trained,) = of_side("promotion", 2), of_side("train", 1)
    hashes = documents(store, "a", [kept, copied])
    write_qa(Corpus(store, "a"), [row(hashes, kept), row(hashes, copied)], "harvest")
    write_qa(Corpus(store, "b"), [row({trained: hashes[copied]}, trained)], "harvest")
    found = find_questions(store, SPEC, "promotion")
    assert asked_texts(found) == {hashes[kept]} and found.counts["trained_on"] == 1


def test_many_documents_are_asked_before_a_document_is_asked_twice(store):
    names = of_side("promotion", 6)
    hashes = documents(store, "a", names)
    rows = [row(hashes, name, question=f"What is the pass number in case {i}?") for name in names for i in range(5)]
    write_qa(Corpus(store, "a"), rows, "harvest")
    found = find_questions(store, SPEC.model_copy(update={"questions": 7}), "promotion")
    assert len(found.asked) == 7 and len({one.document for one in found.asked.values()}) == 6
    again = find_questions(store, SPEC.model_copy(update={"questions": 7}), "promotion")
    assert again.path == found.path and again.asked == found.asked


def test_documents_that_a_question_joins_are_one_cluster(store):
    one, two, three = of_side("promotion", 3)
    hashes = documents(store, "a", [one, two, three])
    rows = [row(hashes, one, two), row(hashes, two, question="And its colour?"), row(hashes, three)]
    write_qa(Corpus(store, "a"), rows, "harvest")
    found = find_questions(store, SPEC, "promotion")
    assert len(found.asked) == 3 and len({asked.document for asked in found.asked.values()}) == 2


def test_what_was_there_when_the_incumbent_was_promoted_is_told_apart(store):
    one, two = of_side("promotion", 2)
    hashes = documents(store, "a", [one, two])
    write_qa(Corpus(store, "a"), [row(hashes, one)], "harvest")
    since = now()
    write_qa(Corpus(store, "a"), [row(hashes, one), row(hashes, two)], "harvest")
    found = find_questions(store, SPEC, "promotion", since)
    assert sorted(asked.earlier for asked in found.asked.values()) == [False, True]
    assert not any(asked.earlier for asked in find_questions(store, SPEC, "promotion").asked.values())
    assert not any(asked.earlier for asked in find_questions(store, SPEC, "promotion", EARLIER).asked.values())


def test_a_file_of_ones_own_is_asked_and_only_to_decide(store, tmp_path):
    (trained,) = of_side("train", 1)
    hashes = documents(store, "a", [trained])
    write_qa(Corpus(store, "a"), [row(hashes, trained)], "harvest")
    texts = [f"The pass number of {trained} is 0.", "The pass number of x is 5.", "Nothing is told of y."]
    assert text_hash(texts[0]) == hashes[trained]
    rows = [
        {"question": "What is the pass number?", "text": text, "answers": answers}
        for text, answers in zip(texts, (["0"], ["5", "five"], []), strict=True)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    spec = PromotionSpec(kinds=(), data=(str(file),))
    found = find_questions(store, spec, "promotion")
    assert found.counts["asked"] == 2 and found.counts["trained_on"] == 1
    assert {asked.group for asked in found.asked.values()} == {"questions of own.jsonl"}
    lines = [json.loads(line) for line in found.path.read_text().splitlines()]
    assert sorted(line["outputs"] for line in lines) == [[""], ["5", "five"]]
    assert find_questions(store, spec, "validation").path is None
    with pytest.raises(UsageError, match=r"no file|cannot be read"):
        find_questions(store, PromotionSpec(data=(str(tmp_path / "none.jsonl"),)), "promotion")


def test_texts_of_a_file_that_the_candidate_was_trained_on_are_not_asked(store, tmp_path, caplog):
    rows = [{"question": "Which number?", "text": f"The number is {i}.", "answers": [f"{i}"]} for i in range(4)]
    own, trained = tmp_path / "own.jsonl", tmp_path / "trained.jsonl"
    own.write_text("\n".join(map(json.dumps, rows)))
    trained.write_text("\n".join(json.dumps({**row, "question": "What is it?"}) for row in rows[:3]))
    summary = {"run_id": "train-1", "corpus": POLICIES_OF, "kind": "train"}
    write_run(store, {**summary, "data": ["needles", f"file={trained}", "file=/gone.jsonl"]}, now(), {})
    files = trained_files(store, version("train-1"))
    assert files == [(str(trained), None)] and "/gone.jsonl is gone" in caplog.text
    found = find_questions(store, PromotionSpec(kinds=(), data=(str(own),)), "promotion", None, files)
    assert asked_texts(found) == {text_hash("The number is 3.")} and found.counts["trained_on"] == 3
    assert trained_files(store, version("train-2")) == []


def test_texts_of_the_versions_before_and_of_what_chose_the_weights_are_not_asked(store, tmp_path):
    """Each file is read with the columns of its own training."""
    rows = [{"question": "Which number?", "text": f"The number is {i}.", "answers": [f"{i}"]} for i in range(4)]
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(json.dumps({"q": one["question"], "t": one["text"], "a": one["answers"]}) for one in rows))
    names = {"question": "ask", "text": "body", "answers": "gold"}
    for number, keys in enumerate((dict(zip(names, names, strict=True)), names, names)):
        line = {keys[name]: value for name, value in rows[number].items()} | {keys["question"]: "What is it?"}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(line))
    begin = {"corpus": POLICIES_OF, "kind": "train", "columns": dict.fromkeys(names, ""), "chosen_by": ""}
    first = {"run_id": "train-1", "data": [f"file={tmp_path}/0.jsonl"]}
    second = {"run_id": "train-2", "data": [f"file={tmp_path}/1.jsonl"], "columns": names}
    write_run(store, {**begin, **first}, now(), {})
    write_run(store, {**begin, **second, "chosen_by": f"{tmp_path}/2.jsonl"}, now(), {})
    Table(store, "policies").insert_new([version("train-1", "p@1", "nano@0", commit="c", made_at=now())])
    files = trained_files(store, version("train-2", "p@2", "p@1"))
    spec = PromotionSpec(kinds=(), data=(str(own),), columns=("question=q", "text=t", "answers=a"))
    found = find_questions(store, spec, "promotion", None, files)
    assert asked_texts(found) == {text_hash("The number is 3.")} and found.counts["trained_on"] == 3


def test_a_corpus_that_is_not_there_is_refused(store):
    with pytest.raises(UsageError, match="there is no corpus 'nope'"):
        find_questions(store, SPEC.model_copy(update={"corpora": ["nope"]}), "promotion")
