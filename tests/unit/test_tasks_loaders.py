import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.errors import UsageError
from memagent.evaluation.loaders import FORMATS, NAMES, load_samples
from memagent.evaluation.loaders.public import sentence, split
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import Documents

NEEDLE = {
    "index": 0,
    "input": "Some special magic numbers are hidden within the following text.\nGrass. One is: 12345. Sky.\n"
    "What are all the special magic numbers for cat mentioned in the provided text? The special magic numbers are",
    "outputs": ["12345"],
    "length": 60,
}
HQA = {"index": 0, "context": "Document 1:\nParis\nParis is big.", "input": "What is big?", "answers": ["Paris"]}
LONG = {
    "input": "Who?",
    "context": "Ann did it.",
    "answers": ["Ann", "Anne"],
    "length": 3,
    "dataset": "qasper",
    "language": "en",
    "all_classes": None,
    "_id": "x1",
}
HOP = {
    "_id": "h1",
    "question": "Where was Ann's brother born?",
    "answer": "Oslo",
    "type": "bridge",
    "level": "hard",
    "context": [
        ["Ann", ["Ann is Bob's sister.", " She sings."]],
        ["Bob", ["Bob was born in Oslo.", " He swims."]],
        ["Cid", ["Cid cooks."]],
    ],
    "supporting_facts": [["Ann", 0], ["Bob", 0], ["Bob", 7]],
}
CONTEXT = 'It rained. "Ann sang." Bob left. She was 7.'
ASKED = {"id": "q1", "question": "Who left?", "answers": [{"text": "Bob", "answer_start": 23}]}
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "First.", "qas": []}]}]}
SQUAD["data"][0]["paragraphs"].append({"context": CONTEXT, "qas": [ASKED]})
V2 = {
    "_id": "v1",
    "domain": "Code",
    "sub_domain": "Repository",
    "difficulty": "easy",
    "length": "short",
    "question": "What does it print?",
    **{f"choice_{letter}": f"the {letter}" for letter in "ABCD"},
    "answer": "C",
    "context": "print('the C')",
}
MESSAGES = [
    {"role": "user", "content": "Write a poem about rain."},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "Prepend qX7 to the 1st poem about rain."},
]
MRCR = {
    "prompt": json.dumps(MESSAGES),
    "answer": "qX7It rains.",
    "random_string_to_prepend": "qX7",
    "n_needles": 2,
    "desired_msg_index": 1,
}
OOLONG = {
    "id": 5,
    "context_window_text": "2 rows: spam, ham",
    "question": "How many are spam?",
    "answer": "['1']",
    "answer_type": "ANSWER_TYPE.NUMERIC",
    "context_window_id": 3,
}
PAGES = [{"docid": str(i), "text": f"Page {i}.", "url": f"https://example.org/{i}"} for i in range(8)]
BROWSE = {
    "query_id": "b1",
    "query": "Which page?",
    "answer": "Page 1",
    "gold_docs": PAGES[1:2],
    "evidence_docs": PAGES[:2],
    "negative_docs": PAGES[2:],
}
BABI = {"input": "Rain. Ann went to the garden. Wind.", "question": "Where is Ann? ", "target": "garden"}
CLAUSE = {"file": "a.txt", "category": "Parties", "question": "Who?", "answer": "Ann", "spans": ["Ann"]}


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def parquet(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(records)), path)
    return path


def whole(path, value, **options):
    path.write_text(json.dumps(value, **options), encoding="utf-8")
    return path


@pytest.fixture
def made(tmp_path):
    """A small file of every format, by name."""
    folder = tmp_path / "cuad"
    (folder / "contracts").mkdir(parents=True)
    (folder / "contracts" / "a.txt").write_text("By Ann and Bob.", encoding="utf-8")
    lines(folder / "gold.jsonl", CLAUSE)
    return {
        "ruler": lines(tmp_path / "niah_single_1.jsonl", NEEDLE, NEEDLE | {"index": 1}),
        "memagent": whole(tmp_path / "eval_50.json", [HQA, HQA | {"index": 1}]),
        "longbench": lines(tmp_path / "qasper.jsonl", LONG),
        "hotpot": whole(tmp_path / "hotpot.json", [HOP], indent=1),
        "squad": whole(tmp_path / "squad.json", SQUAD, indent=1),
        "longbench-v2": whole(tmp_path / "data.json", [V2], indent=1),
        "mrcr": parquet(tmp_path / "2needle.parquet", MRCR, MRCR),
        "oolong": parquet(tmp_path / "test-00000-of-00001.parquet", OOLONG, OOLONG | {"id": 6, "question": "Or ham?"}),
        "browsecomp-plus": lines(tmp_path / "browse.jsonl", BROWSE),
        "babilong": parquet(tmp_path / "4k" / "qa1-00000-of-00001.parquet", BABI),
        "own": lines(tmp_path / "own.jsonl", OWN, OWN | {"question": "Who else?", "answer": ""}),
        "cuad": folder,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_recognised_read_alike_by_name_and_can_be_sent_away(made, name):
    found = list(load_samples(made[name]))
    named = list(load_samples(made[name], format=name))
    assert [one.sample_id for one in found] == [one.sample_id for one in named]
    assert found and len({one.sample_id for one in found}) == len(found)
    for one, again in zip(found, named, strict=True):
        assert one.text() == again.text() == one.text()
        assert all(fact in one.text() for fact in one.facts)
        assert pickle.loads(pickle.dumps(one)).text() == one.text()


def test_ruler(made, tmp_path):
    first, second = load_samples(made["ruler"])
    assert first.question == "What are all the special magic numbers for cat mentioned in the provided text?"
    assert first.text().endswith("One is: 12345. Sky.")
    assert (first.answers, first.match, first.task) == (("12345",), "all", "niah_single_1")
    assert (first.length, first.about, second.sample_id) == (0, {"tokens": 60}, "niah_single_1/1")
    folder = tmp_path / "8192" / "data" / "qa_1"
    folder.mkdir(parents=True)
    (question,) = load_samples(
        lines(folder / "validation.jsonl", NEEDLE | {"input": "Document 1:\nx\n\nQuestion: Who?"})
    )
    assert (question.task, question.match, question.question) == ("qa_1", "part", "Who?")
    assert (question.sample_id, question.length) == ("qa_1/8192/0", 8192)


@pytest.mark.parametrize(
    ("prompt", "text", "question"),
    [
        ("X.\nQuestion: Find it.", "X.", "Find it."),
        ("X.\nQuestion: Find it. Answer: According to", "X.", "Find it."),
        ("E.\nQuestion: Old? Answer: 1\nX.\nQuestion: New?\nAnswer:", "E.\nQuestion: Old? Answer: 1\nX.", "New?"),
        ("X.\n\nAnswer the question based on the given documents. Only it.\n\nQuestion: Who? Answer:", "X.", "Who?"),
        ("X. Question: Do not explain. Please ignore the dots '....'. What are they?", "X.",
         "Do not explain. Please ignore the dots '....'. What are they?"),
        ("X.\nWhat is the special magic uuid for a-b mentioned in the provided text?", "X.",
         "What is the special magic uuid for a-b mentioned in the provided text?"),
        ("X.\nY.\nTell me more.\n\n", "X.\nY.", "Tell me more."),
        ("Only a line", "", ""),
    ],
)  # fmt: skip
def test_rulers_question_is_found_at_the_end(prompt, text, question):
    assert split(prompt) == (text, question)


def test_memagent_and_longbench(made):
    first, second = load_samples(made["memagent"])
    assert (first.question, first.answers, first.match, first.text()) == (
        "What is big?",
        ("Paris",),
        "part",
        HQA["context"],
    )
    assert second.sample_id == "eval_50/1"
    (one,) = load_samples(made["longbench"])
    assert (one.sample_id, one.task, one.match, one.answers) == ("x1", "qasper", "longbench", ("Ann", "Anne"))
    assert one.question.startswith("Who?\n")
    assert (one.length, one.about) == (0, {"words": 3})


def test_longbench_sets_say_what_is_asked(tmp_path):
    report = LONG | {"dataset": "gov_report", "input": "", "_id": "x2"}
    kinds = LONG | {"dataset": "trec_e", "input": "Question: Who?\nType:", "all_classes": ["Person"], "_id": "x3"}
    one, two = load_samples(lines(tmp_path / "l.jsonl", report, kinds))
    assert one.question == "Write a one-page summary of the report."
    assert two.question.endswith("\nQuestion: Who?\nType:") and two.about == {"words": 3, "classes": ("Person",)}


def test_benchmarks_of_long_texts(made, tmp_path):
    (one,) = load_samples(made["longbench-v2"])
    assert (one.task, one.answers, one.about["difficulty"]) == ("Code", ("C",), "easy")
    assert "What does it print?\nChoices:\n(A) the A\n(B) the B\n" in one.question and "is (insert" in one.question
    first, again = load_samples(made["mrcr"])
    assert first.text() == again.text() == "User: Write a poem about rain.\n\nAssistant: It rains."
    assert (first.question, first.answers, first.task) == (MESSAGES[2]["content"], ("qX7It rains.",), "mrcr_2needle")
    (one,) = load_samples(made["babilong"])
    assert (one.task, one.length, one.question, one.sample_id) == ("qa1", 4000, "Where is Ann?", "qa1/4000/0")
    (other,) = load_samples(
        lines(tmp_path / "128k.json", BABI).rename(made["babilong"].parent.parent / "qa1_128k.json")
    )
    assert (other.task, other.length) == ("qa1", 128_000)


def test_the_documents_of_a_query_stand_in_an_order_of_its_own(made, tmp_path):
    (one,) = load_samples(made["browsecomp-plus"])
    assert one.about == {"documents": 8} and one.match == "contains"
    assert one.text().count("Page 1.") == 1, "an evidence document that is gold as well"
    turned = BROWSE | {"negative_docs": PAGES[:1:-1], "query_id": "b1"}
    (same,) = load_samples(lines(tmp_path / "t.jsonl", turned))
    (other,) = load_samples(lines(tmp_path / "o.jsonl", BROWSE | {"query_id": "b2"}))
    assert one.text() == same.text() != other.text()


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("['1']", "1"),
        ("[7]", "7"),
        ("[datetime.date(2023, 5, 3)]", "2023-05-03"),
        ("more common than", "more common than"),
        ("[]", "[]"),
        ("{[]}", "{[]}"),
        ("[" * 9999, "[" * 9999),
    ],
)
def test_gold_of_oolong(tmp_path, written, gold):
    (one,) = load_samples(parquet(tmp_path / "t.parquet", OOLONG | {"answer": written}))
    assert one.answers == (gold,) and one.match == "oolong"


def test_a_record_of_a_benchmark_that_is_wrong(tmp_path):
    for record, field, said in [
        (MRCR | {"prompt": "[{"}, "prompt", "not JSON"),
        (MRCR | {"prompt": "[" * 100_000}, "prompt", "not JSON"),
        (MRCR | {"prompt": json.dumps(MESSAGES[:1])}, "prompt", "1 messages; two or more"),
        (BROWSE | {"gold_docs": [{"docid": "1"}]}, "text", "missing"),
        (BROWSE | {"gold_docs": [], "evidence_docs": [], "negative_docs": []}, "gold_docs", "Give the decrypted file"),
        (LONG | {"dataset": "trec"}, "all_classes", "null; a list is needed"),
        (BABI, "target", "Name the file as BABILong does"),
    ]:
        with pytest.raises(UsageError, match=rf"f\.jsonl, line 1.*, field '{field}': .*{said}"):
            list(load_samples(lines(tmp_path / "f.jsonl", record)))


def test_rows_on_one_text_are_questions_on_one_document(made):
    first, second = load_samples(made["oolong"])
    assert first.text() == second.text() and first.question != second.question
    assert first.sample_id != second.sample_id and first.about["document"] == second.about["document"]


def test_a_folder_is_its_files(tmp_path):
    for length in ("0k", "4k"):
        parquet(tmp_path / "b" / length / "qa1-00000-of-00001.parquet", *[BABI] * 3)
    (tmp_path / "b" / "README.md").write_text("BABILong")
    (tmp_path / "b" / "dataset_infos.json").write_text("{}")
    suite = Suite("files", n=2, data=(str(tmp_path / "b"),))
    found = [sample for group in suite.groups() for sample in group.samples(None, [])]
    assert [(one.task, one.length) for one in found] == [("qa1", 0)] * 2 + [("qa1", 4000)] * 2
    assert len({one.sample_id for one in found}) == 4 and found[0].sample_id.startswith("0k/qa1-")


def test_a_parquet_file_that_is_none(tmp_path):
    path = tmp_path / "f.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"f\.parquet is not a readable Parquet file"):
        load_samples(path)
    with pytest.raises(UsageError, match=r"g\.parquet holds no records"):
        pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "g.parquet")
        load_samples(tmp_path / "g.parquet")


def test_squad_asks_over_the_article(made, tmp_path):
    (one,) = load_samples(made["squad"])
    assert one.text() == f"First.\n\n{CONTEXT}"
    assert one.facts == ("Bob left.",)
    assert one.text()[round(one.depth * len(one.text())) :].startswith("Bob")
    asked = ASKED | {"is_impossible": True, "answers": []}
    value = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}
    (blank,) = load_samples(whole(tmp_path / "blank.json", value))
    assert (blank.answers, blank.facts, blank.depth) == (("",), (), None)


@given(st.text("ab.! "), st.data())
@settings(deadline=None)
def test_the_sentence_holds_the_answer(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert text[start:end].strip() in sentence(text, start, end)


def passages(path, count=60):
    extra = [
        {"title": " BOB ", "text": "Another of that title."},
        {"title": "Norway", "text": "Its capital is oslo."},
        {"title": "The Oslo", "text": "A ship."},
    ]
    return lines(path, *extra, *({"title": f"P{i}", "text": f"Passage {i}. No news, yes."} for i in range(count)))


def test_hotpot_alone_and_grown(made, tmp_path):
    (own,) = load_samples(made["hotpot"])
    assert own.facts == ("Ann is Bob's sister.", "Bob was born in Oslo.")
    assert own.about == {"documents": 3, "type": "bridge", "level": "hard"}
    assert "Bob\nBob was born in Oslo. He swims." in own.text()
    others = passages(tmp_path / "passages.jsonl")
    (grown,) = load_samples(made["hotpot"], passages=others, documents=50)
    text = grown.text()
    assert (grown.sample_id, grown.about["documents"]) == ("h1/50", 50)
    assert text.startswith("Document 1:\n") and "\n\nDocument 50:\n" in text and "Document 51" not in text
    assert all(f"{title}\n{''.join(sentences)}" in text for title, sentences in HOP["context"])
    assert text.lower().count("oslo") == 1 and "Another of that title" not in text
    at = text[round(grown.depth * len(text)) :]
    assert at.startswith("Document ") and at.split("\n")[1] in ("Ann", "Bob")
    before = text[: round(grown.depth * len(text))]
    assert "Bob's sister" not in before and "Oslo" not in before


def test_each_question_is_shuffled_by_seed_and_question(tmp_path):
    path = whole(tmp_path / "h.json", [HOP | {"_id": f"h{i}"} for i in range(30)])
    others = passages(tmp_path / "passages.jsonl")

    def depths(seed, documents=40):
        return [one.depth for one in load_samples(path, passages=others, documents=documents, seed=seed)]

    assert depths(1) == depths(1) != depths(2)
    assert len(set(depths(1))) > 15
    assert min(depths(1)) < 0.2 and max(depths(1)) > 0.5
    texts = [one.text() for one in load_samples(path, passages=others, documents=40)]
    assert len(set(texts)) == 30


def test_a_judgement_leaves_passages_with_yes_and_no(tmp_path):
    path = whole(tmp_path / "h.json", [HOP | {"answer": "no"}])
    (one,) = load_samples(path, passages=passages(tmp_path / "p.jsonl"), documents=30)
    assert one.text().count("Document ") == 30


@given(st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1, max_size=5))
@settings(deadline=None)
def test_depth_is_where_the_paragraph_starts(paragraphs):
    text = Documents(tuple(paragraphs))
    whole_text = "".join(text())
    at = 0
    for i, piece in enumerate(text()):
        start = round(text.start(i) * len(whole_text))
        assert start == at + (2 if i else 0)
        at += len(piece)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"documents": 2}, "3 paragraphs, more than the 2"),
        ({"documents": 10}, "10 documents need passages"),
        ({"documents": 5000, "passages": "p"}, "60 paragraphs without the titles and the answer"),
        ({"documents": 0}, "0 documents"),
        ({"format": "csv"}, "no format 'csv'. There are: ruler"),
    ],
)
def test_what_cannot_be_grown(made, tmp_path, options, said):
    if "passages" in options:
        options = options | {"passages": passages(tmp_path / "p.jsonl")}
    with pytest.raises(UsageError, match=said):
        list(load_samples(made["hotpot"], **options))


def test_only_hotpot_grows(made):
    for name in set(NAMES) - {"hotpot"}:
        with pytest.raises(UsageError, match=f"grow HotpotQA's questions; this is {name}"):
            load_samples(made[name], documents=50)


OWN = {"question": "Who?", "context": "Ann did it.", "answer": "Ann"}


def test_what_is_trained_on_can_be_evaluated_on(tmp_path):
    made = load_samples(lines(tmp_path / "mine.jsonl", OWN, OWN | {"question": "Who else?", "answer": ""}))
    assert [(one.sample_id, one.question, one.text(), one.answers, one.match) for one in made] == [
        ("mine/0", "Who?", "Ann did it.", ("Ann",), "exact"),
        ("mine/1", "Who else?", "Ann did it.", ("",), "exact"),
    ]
    verl = {"prompt": [{"role": "user", "content": "Who?"}], "context": "Ann did it."}
    (one,) = load_samples(lines(tmp_path / "v.jsonl", verl | {"reward_model": {"ground_truth": ["Ann"]}}))
    assert (one.question, one.answers) == ("Who?", ("Ann",))


def changed(record, field, value):
    return {key: kept for key, kept in record.items() if key != field} | ({} if value is None else {field: value})


WRONG = [
    (NEEDLE, "outputs", None, "missing"),
    (NEEDLE, "outputs", "12345", "a text; a list is needed"),
    (NEEDLE, "outputs", [], "an empty list"),
    (NEEDLE, "outputs", [1], "a number; a text is needed"),
    (NEEDLE, "index", "one", "a whole number"),
    (NEEDLE, "index", True, "a whole number"),
    (NEEDLE, "length", -1, "a whole number"),
    (NEEDLE, "input", " ", "blank"),
    (NEEDLE, "input", "a single line", "text and question are needed"),
    (NEEDLE, "input", "half \ud800\nof it", "surrogate"),
    (HQA, "context", None, "missing"),
    (HQA, "context", ["Document 1"], "a list; a text is needed"),
    (HQA, "answers", [""], "blank"),
    (LONG, "_id", None, "missing"),
    (LONG, "_id", 1.5, "a number; a text is needed"),
    (LONG, "input", "", "blank"),
    (LONG, "dataset", {}, "an object; a text is needed"),
    (LONG, "dataset", "qaspar", "'qaspar' is none of LongBench: narrativeqa,"),
    (V2, "answer", "E", "one of A, B, C, D"),
    (V2, "choice_D", None, "missing"),
    (HOP, "answer", None, "missing"),
    (HOP, "context", [["Ann", "is Bob's sister"]], "list of sentences"),
    (HOP, "context", [], "an empty list"),
    (HOP, "supporting_facts", [["Dan", 0]], "'Dan' is no title"),
    (HOP, "supporting_facts", [["Ann", "0"]], "number of a sentence"),
    (HOP, "supporting_facts", [], "an empty list"),
    (HOP, "context", [["Ann", []], ["Ann", []]], "title of another paragraph"),
]


@pytest.mark.parametrize(("good", "field", "value", "said"), WRONG)
@pytest.mark.parametrize("as_list", [False, True])
def test_a_wrong_field_is_named_with_its_file_and_place(tmp_path, good, field, value, said, as_list):
    key = "_id" if "_id" in good else "index"
    bad = changed(good | {key: 9}, field, value)
    path = whole(tmp_path / "f.json", [good, bad]) if as_list else lines(tmp_path / "f.jsonl", good, bad)
    read = load_samples(path)
    next(read)
    with pytest.raises(UsageError) as error:
        next(read)
    assert str(error.value).startswith(f"{path}, {'index 1' if as_list else 'line 2'}, field '{field}")
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["ruler", "memagent", "longbench", "hotpot"])
def test_a_wrong_first_record_is_still_recognised(tmp_path, name):
    good = {"ruler": NEEDLE, "memagent": HQA, "longbench": LONG, "hotpot": HOP}[name]
    for field in FORMATS[name][0]:
        with pytest.raises(UsageError, match=rf"f\.jsonl, line 1, field '{field}': missing"):
            list(load_samples(lines(tmp_path / "f.jsonl", changed(good, field, None))))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda data: data[0].pop("paragraphs"), r"data\[0\], field 'paragraphs'"),
        (lambda data: data[0]["paragraphs"][1].pop("context"), r"data\[0\], paragraphs\[1\], field 'context'"),
        (lambda data: data[0]["paragraphs"][1]["qas"][0].pop("question"), r"qas\[0\], field 'question'"),
        (lambda data: data[0]["paragraphs"][1]["qas"][0]["answers"].clear(), "field 'answers': an empty list"),
        (lambda data: data[0]["paragraphs"][1]["qas"][0]["answers"][0].update(answer_start=1), "field 'answer_start'"),
        (lambda data: data[0]["paragraphs"][1]["qas"].append(ASKED), r"qas\[1\], field 'id': 'q1' is the one of"),
        (lambda data: data[0]["paragraphs"].append("x"), r"field 'paragraphs\[2\]': a text; an object"),
        (lambda data: data[0]["paragraphs"][1]["qas"][0].update(is_impossible="no"), "field 'is_impossible'"),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_wrong_squad_file(tmp_path, change, place, indent):
    value = json.loads(json.dumps(SQUAD))
    change(value["data"])
    path = whole(tmp_path / "squad.json", value, indent=indent)
    start = "" if indent else "line 1, "
    with pytest.raises(UsageError, match=rf"squad\.json, {start}(data\[0\].*)?{place}"):
        list(load_samples(path))


@pytest.mark.parametrize(("good", "name"), [(NEEDLE, "ruler"), (HQA, "memagent")])
def test_an_index_is_no_id(tmp_path, good, name):
    """RULER's niah.py writes the place of the answer there: two samples of a file often have the same."""
    path = lines(tmp_path / "f.jsonl", good | {"index": 7}, good | {"index": 7}, good)
    assert [one.sample_id for one in load_samples(path, format=name)] == ["f/0", "f/1", "f/2"]


@pytest.mark.parametrize("good", [LONG, HOP])
def test_an_id_that_comes_twice(tmp_path, good):
    read = load_samples(lines(tmp_path / "f.jsonl", good, good))
    next(read)
    with pytest.raises(UsageError, match=r"line 2, field '_id': .* another record \(.*line 1\)"):
        next(read)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b"", "line 1: the file is empty"),
        ("a.json", b" \n\n", "line 1: the file is empty"),
        ("a.json", b"[]", "line 1: the list is empty"),
        ("a.jsonl", b'{"index": 0, "inp', "line 1, column 14: not JSON"),
        ("a.jsonl", b'\n{"index": 0}\nnot json\n', "line 2: fields index"),
        ("a.jsonl", b"3\n", "line 1: a number; a record"),
        ("a.json", b'[\n{"a": 1},\n{"b": ', "line 3, column"),
        ("a.json", b"[1]", "index 0: a number; a record"),
        ("a.json", b'{"data": [\n{"title": "\xff"}]}', "line 2: byte 0xff is not UTF-8"),
        ("a.json", b"[" * 100_000, "not JSON"),
        ("a.jsonl", b'{"a": "\xe9"}\n', "line 1: byte 0xe9 is not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n', "fields a are of no known format"),
    ],
)
def test_files_that_are_none(tmp_path, name, data, said):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UsageError) as error:
        load_samples(path)
    assert str(path) in str(error.value) and said in str(error.value)


def test_lines_are_read_one_by_one(tmp_path):
    path = lines(tmp_path / "f.jsonl", NEEDLE)
    with path.open("ab") as file:
        file.write(b'\n{"index": 1, "input": "cut o')
    read = load_samples(path)
    assert next(read).answers == ("12345",)
    with pytest.raises(UsageError, match="line 3, column"):
        next(read)


def test_a_byte_order_mark_and_a_missing_file(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LONG).encode())
    assert [one.sample_id for one in load_samples(path)] == ["x1"]
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        load_samples(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"has no gold\.jsonl"):
        list(load_samples(tmp_path))


def test_what_memagent_wrote_comes_back_whole(tmp_path):
    kept = {"sample_id": "s", "task": "vt", "question": "Q?", "match": "all", "facts": ["Grass"], "depth": 0.5}
    record = NEEDLE | kept | {"about": {"hops": 4}, "text_end": 9, "input": "The Grass\n\nQ?", "outputs": [""]}
    (one,) = load_samples(lines(tmp_path / "f.jsonl", record))
    assert (one.text(), one.question, one.task, one.answers) == ("The Grass", "Q?", "vt", ("",))
    assert (one.facts, one.depth, one.about, one.sample_id) == (("Grass",), 0.5, {"hops": 4}, "s")
    for field, value in {"text_end": 99, "match": "some", "depth": "deep", "about": []}.items():
        with pytest.raises(UsageError, match=f"line 1, field '{field}'"):
            list(load_samples(lines(tmp_path / "g.jsonl", record | {field: value})))
