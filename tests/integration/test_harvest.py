"""Harvest from end to end: what was asked, answered and said becomes rows, and leaves again."""

import asyncio
import csv
import io
import json
import random
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.cluster.board import Attempt, Board
from infra.readers import ReaderSpec
from infra.store.corpora import forgotten, remember, tag
from infra.store.delta import Table
from infra.store.documents import DocumentWriter, current_documents, current_sources, document_texts
from infra.store.feedback import Reviews, verdicts
from infra.store.location import Corpus, Store
from infra.store.qa import CorpusIndex, QaWritten, count_new, qa_version, read_qa, write_qa
from infra.store.schemas import now
from infra.store.segments import write_segments
from memagent.config import load_config
from memagent.errors import ConfigError, UsageError
from memagent.evaluation.records import columns_of
from memagent.quality.curation import Qa, gather, split_of
from memagent.records import Question, text_hash
from memagent.rl.dataset import Cut
from pipelines.ask import ask
from pipelines.harvest import HarvestOptions, harvest, settle
from pipelines.io.answers import answer_table, write_answers
from pipelines.io.feedback import take_feedback
from pipelines.io.qa_files import export_qa, import_qa
from pipelines.stages.collect_qa import load_answers
from pipelines.stages.write_questions import Writer, choose, generate
from pipelines.training.data import logged_readings, splits
from pipelines.training.rollouts import TeacherSampler
from pipelines.training.settings import prepare
from tests.support.texts import filler

TEXTS = ("one", "one, changed", "two", "three", "never")


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


@pytest.fixture
def config(store, model_folder):
    return load_config(
        store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=["flush_seconds=0.2"]
    )


@pytest.fixture
def corpus(store):
    """Eight documents, two of them under a folder of their own."""
    for path in [*(f"open/{name}.txt" for name in "abcdef"), *(f"hr/{name}.txt" for name in "xy")]:
        write(store, path, text_of(path[-5]))
    return "c"


def text_of(name):
    return f"Notes of {name}.\n\nThe pass number for otter-{name} is {ord(name)}.\n\nThe end."


def write(store, doc_id, text, first_seen=None):
    """Write a version of a document; None deletes it."""
    at = now()
    writer = DocumentWriter(Corpus(store, "c"), "run", at)
    row = {"doc_id": doc_id, "title": doc_id, "source": f"/docs/{doc_id}", "media_type": "text/plain"}
    row |= {"first_seen": first_seen or at, "content_hash": text_hash(text or ""), "size_bytes": 1, "source_stamp": "1"}
    if text is None:
        writer.delete([row])
    else:
        writer.document(row | {"chars": len(text), "state": "present"}, text)
    writer.commit()


def asks(name, gold=None, folder="open"):
    return Question(name, f"What is the pass number for otter-{name}?", (f"{folder}/{name}.txt",), gold)


def said(store, corpus="c"):
    return {row.question[-2]: (row.source, row.answers) for row in read_qa(store, corpus)}


def feedback(store, tmp_path, rows, reviewer=""):
    path = tmp_path / "feedback.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return take_feedback(store, path, reviewer=reviewer)


def test_what_was_answered_becomes_rows_and_leaves_when_it_may_not_teach(store, corpus, config, tmp_path):
    with pytest.raises(UsageError, match="nothing was answered with gold yet: memagent ask c"):
        harvest("c", config)
    assert not Table(store, "runs").read("c").num_rows and qa_version(store) is None
    gold = [asks("a", ("97",)), asks("b", ("wrong",)), asks("x", ("120",), "hr")]
    ask("c", [*gold, asks("c"), asks("d"), asks("e"), asks("y", None, "hr")], config)
    tag(Corpus(store, "c"), ["/docs/hr"], ["sensitive"])
    first = harvest("c", config, HarvestOptions(samples=2))
    assert first["dropped"] == {"excluded": 1} and first["by_source"] == {"gold": 2, "agreement": 3}
    assert said(store) == {
        "a": ("gold", ("97",)),
        "b": ("gold", ("wrong",)),
        **{name: ("agreement", (str(ord(name)),)) for name in "cde"},
    }
    rows = {row.question[-2]: row for row in read_qa(store, "c")}
    text = text_hash(text_of("a"))
    assert rows["a"].evidence == ((text, 0),) and rows["b"].evidence == rows["b"].spans == ()
    (span,) = rows["a"].spans
    assert span.content_hash == text and "is 97." in text_of("a")[span.start : span.end]
    assert rows["a"].documents == ("open/a.txt",) and rows["c"].share == 1.0
    kinds = Table(store, "runs").read("c", ["kind"])["kind"].to_pylist()
    assert sorted(kinds) == ["agreement", "agreement", "ask", "harvest"]
    sampled = Table(store, "answers").read("c", ["question"])["question"].to_pylist()
    assert len(sampled) == 7 + 2 * 3 and sampled.count(asks("y").text) == 1, "what may not teach is not sampled"

    version = qa_version(store)
    again = harvest("c", config)
    assert (again["new"], again["changed"], again["removed"], again["rows"]) == (0, 0, 0, 5)
    assert qa_version(store) == version and count_new(store, version) == 0 and count_new(store, None) == 5

    readings = {row["question"][-2]: row["reading_id"] for row in answer_table(config, "c")}
    done = feedback(
        store,
        tmp_path,
        [
            {"reading_id": readings["b"], "verdict": "corrected", "answer": "98"},
            {"reading_id": readings["c"], "verdict": "rejected", "answer": "whatever"},
            {"reading_id": readings["d"], "verdict": "accepted"},
        ],
    )
    assert done["verdicts"] == {"corrected": 1, "rejected": 1, "accepted": 1}
    write(store, "open/e.txt", None)
    third = harvest("c", config)
    assert said(store) == {"a": ("gold", ("97",)), "b": ("feedback", ("98",)), "d": ("feedback", ("100",))}
    assert third["dropped"] == {"a better source": 2, "excluded": 1, "no document": 1, "rejected": 1}
    assert (third["new"], third["changed"], third["removed"]) == (0, 2, 2)
    assert count_new(store, version) == 1, "a corrected answer is new, an accepted one is not"
    assert harvest("c", config, HarvestOptions(exclude=()))["by_source"] == {"feedback": 2, "gold": 2}
    feedback(store, tmp_path, [{"reading_id": readings["d"], "verdict": "corrected", "answer": "101"}], "anna")
    feedback(store, tmp_path, [{"reading_id": readings["a"], "verdict": "accepted"}])
    feedback(store, tmp_path, [{"reading_id": readings["a"], "verdict": "corrected", "answer": "101"}], "anna")
    assert harvest("c", config)["dropped"]["disputed"] == 5, "two verdicts on each, and the gold of one"
    assert said(store) == {"b": ("feedback", ("98",))}


def test_the_teacher_follows_the_readings_of_the_rows(store, config):
    """Another model's readings, by the turn log: its segments and memories, under this reader's tokens and prompts."""
    names = "abcdefghijklmn"
    remember(Corpus(store, "c"), sources=["/docs"])
    for i, name in enumerate(names):
        parts = [filler(random.Random(f"{name}{j}"), 90) for j in range(8)]
        parts.insert(i % 8, f"The pass number for otter-{name} is {ord(name)}.")
        write(store, f"open/{name}.txt", "\n\n".join(parts))
    given = config.model_copy(update={"reading": {"segment_tokens": 128, "memory_tokens": 64}})
    ask("c", [asks(name, ("98",) if name == "a" else (str(ord(name)),)) for name in names], given)
    harvest("c", given)
    run = prepare(
        "sft", ["qa"], [], store.url, ["rollout.segments=4", "rollout.prompts=16", "learner.minibatch_prompts=16"]
    )
    rows = {row.question[-2]: row for row in read_qa(store, "c", "train")}
    logged = logged_readings(store, list(rows.values()), Cut(run.reader.tokenizer, run.reader.reading, 4))
    assert set(logged) == {row.reading_id for name, row in rows.items() if name != "a"}, "a's gold is another"
    data = splits(run).train
    sampler = TeacherSampler(data, run.reader.scheme, run.recipe)
    seen = [group.trajectories[0] for _, group in asyncio.run(sampler.batch(1)).seen]
    assert len(seen) == 16 and all(one.reward.right and one.advantage == 1.0 for one in seen)
    tasks = [data.task(number) for number in range(16)]
    assert any(task.memories for task in tasks)
    for task in tasks:
        memories = [*logged[rows[task.question[-2]].reading_id].changes.values()] if task.memories else []
        assert list(dict.fromkeys(filter(None, task.memories))) == memories
        assert all(f"is {ord(task.question[-2])}." in memory for memory in memories[-1:])
    rewarded = prepare("nano-cpu", ["qa"], [], store.url)
    assert not any(splits(rewarded).train.task(number).memories for number in range(4)), "rewards need the task alone"
    write_qa(Corpus(store, "c"), list(rows.values()), "few")
    assert splits(run).train.task(0).memories, "where no row is held out, none has to be"


def test_a_changed_document_and_a_copy_stay_on_their_side(store):
    write(store, "a", "one")
    write(store, "b", "two")
    write(store, "copy", "one")
    write(store, "a", "one, changed")
    write(store, "gone", "three")
    write(store, "gone", None)
    shelf = CorpusIndex(Corpus(store, "c"))
    placed = {text: shelf.place(Qa("Who?", ("x",), (text_hash(text),), (), "gold")).documents for text in TEXTS}
    assert placed == {"one": ("a",), "one, changed": ("a",), "two": ("b",), "three": (), "never": ()}
    both = shelf.place(Qa("Who?", ("x",), (text_hash("two"), text_hash("one")), (), "gold"))
    assert both.documents == ("a", "b")
    assert not shelf.place(Qa("Who?", ("x",), (text_hash("two"), text_hash("never")), (), "gold")).documents
    assert shelf.current == {"a", "b", "copy"}


class _Chat(BaseHTTPRequestHandler):
    """A chat server that writes and answers questions by rule."""

    def do_GET(self):
        self._send({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "t"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][0]["content"]
        number = re.search(r"The pass number for (otter-\w) is (\d+)", prompt)
        if "Write two lines" in prompt and number:
            said = f"Question: What is the pass number for {number[1]}?\nAnswer: {number[2]}"
        elif "Section:" in prompt and number:
            said = number[2]
        else:
            said = "102" if "otter-f" in prompt and "Section:" not in prompt else "not found"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        self._send({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    def _send(self, said):
        data = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def chat_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Chat)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_model_writes_questions_and_only_those_that_need_the_document_stay(store, corpus, model_folder):
    tag(Corpus(store, corpus), ["/docs/hr"], ["sensitive"])
    with chat_server() as url:
        sets = [f"engine.base_url={url}", "engine.served_model=m", "engine.protocol=chat", "reading.template=plain"]
        chat = load_config(store=store.url, engine__kind="openai", engine__model=str(model_folder), sets=sets)
        summary = harvest("c", chat, HarvestOptions(questions=100))
        assert summary["by_source"] == {"generated": 5}
        assert summary["dropped"] == {"answerable without a document": 1}
        assert said(store) == {name: ("generated", (str(ord(name)),)) for name in "abcde"}
        shelf = CorpusIndex(Corpus(store, "c"))
        for row in read_qa(store, "c"):
            assert row.evidence == ((row.stream[0], 0),) and shelf.place(row) == row
            assert row.policy_id == ReaderSpec(chat).policy.policy_id
        more = harvest("c", chat, HarvestOptions(questions=100))
        assert more["dropped"] == {"answerable without a document": 1}, "only what has no question is asked again"
        assert (more["rows"], more["new"]) == (5, 0)


async def test_what_an_engine_refuses_is_counted_and_one_that_does_not_start_ends_the_run(store, config):
    reader = ReaderSpec(config)
    ((place,), _) = write_segments(Corpus(store, "c"), [("h", text_of("a"))], reader.tokenizer, reader.reading)
    item = choose({"h": place}, 1, "seed")
    (said,) = await Writer(Board(), store, reader, 4).run(item, Attempt())
    assert said == "the engine refused it (RequestError)"
    nowhere = ReaderSpec(load_config(sets=["engine.kind=openai", "engine.base_url=http://127.0.0.1:9/v1"]))
    with pytest.raises(ConfigError, match="no OpenAI-compatible server answers"):
        await Writer(Board(), store, nowhere, 4).run(item, Attempt())


def test_a_window_that_is_too_small_is_said_before_an_engine_starts(store, config):
    small = config.model_copy(update={"engine": config.engine.model_copy(update={"max_model_len": 256})})
    with pytest.raises(ConfigError, match=r"the window has 256\. Lower reading"):
        generate(store, ReaderSpec(small), small, [{"place": {}, "index": 0, "seed": 0}])


def test_rows_that_another_run_writes_while_a_choice_is_made_stay(store, monkeypatch):
    write(store, "d", "said")
    asked, stream = ("Who?", "When?", "Where?"), (text_hash("said"),)
    one, two, late = (Qa(question, ("x",), stream, ("d",), "gold") for question in asked)
    corpus = Corpus(store, "c")
    settle(corpus, [one], "run-1")

    def slow(*given):
        chosen = gather(*given)
        if [late.question] not in [row.question for row in read_qa(store)]:
            write_qa(corpus, [one, late], "run-3")
        return replace(chosen, kept=[row for row in chosen.kept if row.question != one.question])

    monkeypatch.setattr("pipelines.harvest.gather", slow)
    assert settle(corpus, [two], "run-2")["removed"] == 1
    assert sorted(row.question for row in read_qa(store)) == ["When?", "Where?"]


def test_answers_and_rows_are_found_on_every_kind_of_store(root):
    store = Store(f"{root}/store")
    answered(store, "r0", "r1")
    answered(store, "r2", answer="98")
    assert {name: row["answer"] for name, row in load_answers(Corpus(store, "c"), ["r0", "r2", "r9"]).items()} == {
        "r0": "97",
        "r2": "98",
    }
    one, two = (Qa(question, ("x",), ("h",), ("d",), "gold") for question in ("Who?", "When?"))
    assert write_qa(Corpus(store, "c"), [one, two], "run-1").new == 2
    version = qa_version(store)
    better = replace(one, answers=("y",), evidence=(("h", 1),))
    assert write_qa(Corpus(store, "c"), [better], "run-2") == QaWritten(new=0, changed=1, removed=1)
    assert read_qa(store) == read_qa(store, "c", split_of(["d"])) == [better]
    assert (count_new(store, version), count_new(store, qa_version(store))) == (1, 0)
    assert not read_qa(store, "other")


def test_an_import_that_ends_before_its_sources_are_written_is_made_up_for(store, tmp_path, monkeypatch):
    path, commit = tmp_path / "rows.parquet", Table.commit_files
    write_parquet(path, [record("Who?", ["Ada"], "Ada did.")])

    def killed(table, *given, **named):
        if table.name == "sources":
            raise KeyboardInterrupt
        return commit(table, *given, **named)

    with monkeypatch.context() as once, pytest.raises(KeyboardInterrupt):
        once.setattr(Table, "commit_files", killed)
        import_qa(Corpus(store, "c"), path)
    assert current_documents(Corpus(store, "c")).num_rows == 1 and not current_sources(Corpus(store, "c")).num_rows
    assert [import_qa(Corpus(store, "c"), path)["documents"] for _ in range(2)] == [1, 0]
    assert current_documents(Corpus(store, "c")).num_rows == current_sources(Corpus(store, "c")).num_rows == 1
    assert len(read_qa(store, "c")) == 1


def test_rows_go_out_and_come_back(store, tmp_path):
    path = tmp_path / "rows.parquet"
    write_parquet(
        path, [record("Who?", ["Ada", "A."], "Ada did."), record("When?", [""], "Ada did."), record("", ["x"])]
    )
    summary = import_qa(Corpus(store, "c"), path, "run-import")
    assert (summary["rows"], summary["documents"], summary["dropped"]) == (2, 1, {"no question": 1})
    (run,) = Table(store, "runs").read("c").to_pylist()
    assert run["kind"] == "harvest" and json.loads(run["summary"])["by_source"] == {"gold": 2}
    out = tmp_path / "out.parquet"
    assert export_qa(Corpus(store, "c"), out) == 2
    table = pq.read_table(out)
    assert table.column_names == ["data_source", "prompt", "context", "ability", "reward_model", "extra_info"]
    first = next(row for row in table.to_pylist() if row["prompt"][0]["content"] == "Who?")
    assert first["context"] == "Ada did." and first["reward_model"]["ground_truth"] == ["Ada", "A."]
    assert first["extra_info"]["source"] == "gold" and first["extra_info"]["split"] == split_of([text_hash("Ada did.")])
    other = Store(store.url + "-other")
    import_qa(Corpus(other, "d"), out)
    assert set(read_qa(other, "d")) == set(read_qa(store, "c"))
    assert import_qa(Corpus(store, "c"), out)["new"] == 0
    with pytest.raises(UsageError, match="no rows to export"):
        export_qa(Corpus(other, "nothing"), out)
    with pytest.raises(UsageError, match="cannot be written"):
        export_qa(Corpus(store, "c"), path / "out.parquet")


@pytest.mark.parametrize("name", ["verl.parquet", "verl.jsonl", "openrlhf.jsonl", "memagent.parquet", "own.jsonl"])
def test_rows_go_out_and_come_back_in_every_tools_columns(store, tmp_path, name):
    rows = [
        {"q": "Who?", "docs": ["Ada did.", "Ben too."], "gold": ["Ada", "A."]},
        {"q": "What is\u2028it?", "docs": ["It is 5.\n\nQuestion: no."], "gold": 5},
        {"q": "When?", "docs": ["It is 5.\n\nQuestion: no."], "gold": []},
        {"q": "", "docs": ["x"], "gold": ["y"]},
        {"q": "No text?", "docs": None, "gold": ["y"]},
    ]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = columns_of(["question=q", "text=docs", "answers=gold"])
    summary = import_qa(Corpus(store, "c"), tmp_path / "given.jsonl", columns=columns)
    assert summary["dropped"] == {"no question": 1, "no context": 1} and summary["documents"] == 3
    first = {row.question: row.answers for row in read_qa(store, "c")}
    assert first == {"Who?": ("Ada", "A."), "What is\u2028it?": ("5",), "When?": ("",)}
    assert export_qa(Corpus(store, "c"), tmp_path / name, name.split(".")[0]) == 3
    other = Store(store.url + "-other")
    import_qa(Corpus(other, "d"), tmp_path / name)
    assert {row.question: row.answers for row in read_qa(other, "d")} == first
    texts = dict(document_texts(Corpus(other, "d"), {h for row in read_qa(other, "d") for h in row.stream}))
    apart = {"Ada did.", "Ben too."} if name.startswith("own") else {"Ada did.\n\nBen too."}
    assert set(texts.values()) == apart | {"It is 5.\n\nQuestion: no."}
    with pytest.raises(UsageError, match=r"no format 'trl'\. There are: verl, openrlhf, memagent, own"):
        export_qa(Corpus(store, "c"), tmp_path / name, "trl")


def record(question, answers, context="A text."):
    prompt = [{"role": "system", "content": "Read."}, {"role": "user", "content": question}]
    return {"prompt": prompt, "context": context, "reward_model": {"style": "rule", "ground_truth": answers}}


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": [], "context": "x"}], "has the columns prompt, context, which are not enough"),
        ([record("Who?", ["Ada"], " ")], "no usable row"),
        ([record("Who?", ["Ada"]), {**record("Who?", ["Ada"]), "context": None}], None),
        ([{**record("Who?", ["Ada"]), "context": 3}], "row 1, field 'context': a number; a text is needed"),
    ],
)
def test_a_file_of_other_columns_is_refused(store, tmp_path, rows, words):
    path = tmp_path / "rows.parquet"
    write_parquet(path, rows)
    if words is None:
        assert import_qa(Corpus(store, "c"), path)["dropped"] == {"no context": 1}
        return
    with pytest.raises(UsageError, match=re.escape(words)):
        import_qa(Corpus(store, "c"), path)
    assert not read_qa(store)


def test_rows_on_a_forgotten_text_are_not_imported(store, tmp_path):
    path, corpus = tmp_path / "rows.parquet", Corpus(store, "c")
    write_parquet(path, [record("Who?", ["Ada"], "Ada was here."), record("Who?", ["Bo"], "Bo was here.")])
    forgotten(corpus, [text_hash("Ada was here.")])
    assert import_qa(corpus, path)["dropped"] == {"forgotten text": 1}
    assert [row.answers for row in read_qa(store)] == [("Bo",)]
    assert current_documents(corpus, ["content_hash"])["content_hash"].to_pylist() == [text_hash("Bo was here.")]


def test_a_file_that_is_no_parquet_is_refused(store, tmp_path):
    (tmp_path / "rows.parquet").write_text("no")
    with pytest.raises(UsageError, match="not a readable Parquet file"):
        import_qa(Corpus(store, "c"), tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match="no file"):
        import_qa(Corpus(store, "c"), tmp_path / "other.parquet")


def answered(store, *names, corpus="c", answer="97"):
    rows = [
        {"corpus": corpus, "reading_id": name, "question": "Who?", "stream": ["h"], "answer": answer} for name in names
    ]
    Table(store, "answers").insert_new(rows)


def test_answers_taken_away_as_csv_come_back_as_feedback(store, tmp_path, capsysbinary):
    row = {"document": "d", "title": "t", "source": "s", "question_id": "q", "question": "Who?", "found": True}
    row |= {"evidence": [{"quote": 'a "quote"\u2028over,\nlines\x0c', "segment_index": 0}], "gold": None}
    said = ["-5", "x", "y"]
    rows = [row | {"answer": text, "engine_answer": text, "reading_id": f"r{i}"} for i, text in enumerate(said)]
    write_answers(rows, "csv", None)
    table = list(csv.DictReader(io.StringIO(capsysbinary.readouterr().out.decode(), newline="")))
    assert [one["reading_id"] for one in table] == ["r0", "r1", "r2"]
    for one, verdict in zip(table, ("Corrected", "accepted", ""), strict=True):
        one["verdict"] = verdict
    path = tmp_path / "answers.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*table[0]])
        writer.writeheader()
        writer.writerows(table)
    answered(store, "r0", "r1", "r2")
    answered(store, "r0", corpus="other")
    done = take_feedback(store, path)
    assert done["corpus"] == ["c", "other"] and done["verdicts"] == {"corrected": 2, "accepted": 1}
    assert (done["without_verdict"], done["unknown_readings"]) == (1, 0)
    kept = {(row["corpus"], row["reading_id"]): row for row in Table(store, "feedback").read().to_pylist()}
    assert kept["other", "r0"]["answer"] == "-5", "the mark against spreadsheets is off again"
    assert kept["c", "r1"]["verdict"] == "accepted" and len(kept) == 3
    again = take_feedback(store, path)
    assert (again["verdicts"], again["known_before"]) == ({}, 3)
    assert take_feedback(store, path, "c")["corpus"] == ["c"]
    path.write_text("reading_id,verdict,answer\nr1,accepted,97\nr2,accepted,z\n")
    with pytest.raises(UsageError, match=r"csv, line 3: its answer .* keep the columns engine_answer and review"):
        take_feedback(store, path)
    assert Table(store, "feedback").read().num_rows == 3


def test_the_last_file_counts_though_an_earlier_one_came_from_a_clock_that_was_ahead(store, tmp_path):
    answered(store, "r0")
    feedback(store, tmp_path, [{"reading_id": "r0", "verdict": "rejected"}])
    table = Table(store, "feedback")
    (ahead,) = table.read().to_pylist()
    table.append([ahead | {"given_at": ahead["given_at"] + timedelta(days=400)}])
    feedback(store, tmp_path, [{"reading_id": "r0", "verdict": "corrected", "answer": "Utah"}])
    assert [each.verdict.right for each in verdicts(Corpus(store, "c"))] == ["Utah"]


def test_what_a_file_makes_absent_or_disputed_is_counted_and_listed(store, tmp_path):
    rows = [
        {
            "corpus": "c",
            "reading_id": f"r{n}",
            "question": "Who?",
            "content_hash": f"h{n}",
            "stream": [],
            "answer": "97",
        }
        for n in range(3)
    ]
    Table(store, "answers").insert_new(rows)
    given = {"corpus": "c", "verdict": "accepted", "answer": "", "given_at": now(), "reviewer": "anna", "comment": ""}
    said = [given | {"reading_id": f"r{n}", "spans": [], "decides": False} for n in range(3)]
    Table(store, "feedback").append(said)
    verdicts = [("r0", "corrected", ""), ("r1", "corrected", "98"), ("r2", "accepted", "")]
    said = [dict(zip(("reading_id", "verdict", "answer"), each, strict=True)) for each in verdicts]
    done = feedback(store, tmp_path, said)
    assert (done["not_in_document"], done["disputed"]) == (1, 2)
    assert done["list_disputed"] == ["memagent answers c --where review=disputed"]
    rejected = [{"reading_id": "r1", "verdict": "rejected"}]
    assert feedback(store, tmp_path, rejected, "anna")["disputed"] == 1, "she took back what the file contradicts"
    assert feedback(store, tmp_path, rejected, "anna")["known_before"] == 1
    assert feedback(store, tmp_path, [{"reading_id": "r1", "verdict": "accepted"}], "anna")["known_before"] == 0
    done = feedback(store, tmp_path, [{"reading_id": f"r{n}", "verdict": "accepted"} for n in (0, 1)])
    assert (done["not_in_document"], done["disputed"], done["list_disputed"]) == (0, 0, [])


@pytest.mark.parametrize("right", ["98", ""])
def test_a_verdict_of_a_file_is_about_the_answer_that_the_file_shows(store, tmp_path, right):
    row = {"corpus": "c", "reading_id": "r0", "question": "Who?", "content_hash": "h", "stream": [], "answer": "97"}
    Table(store, "answers").insert_new([row])
    corrected = {"reading_id": "r0", "verdict": "corrected", "answer": right}
    feedback(store, tmp_path, [corrected], "anna")
    shown = {"reading_id": "r0", "answer": right, "review": "corrected"}
    assert feedback(store, tmp_path, [shown | {"verdict": "accepted"}], "ben")["disputed"] == 0
    assert Reviews(Corpus(store, "c")).of(row).reviewers == ("anna", "ben")
    assert feedback(store, tmp_path, [shown | {"verdict": "rejected"}], "ben")["disputed"] == 1
    assert feedback(store, tmp_path, [shown | {"verdict": "rejected"}], "ben")["known_before"] == 1
    for verdict in ("accepted", "rejected"):
        with pytest.raises(UsageError, match=r"line 1: .* Add a column 'answer'"):
            feedback(store, tmp_path, [{"reading_id": "r0", "review": "corrected", "verdict": verdict}], "ben")
        with pytest.raises(UsageError, match="line 1: its answer is not the one that was exported"):
            feedback(store, tmp_path, [shown | {"answer": "99", "verdict": verdict}], "ben")
    assert feedback(store, tmp_path, [{"reading_id": "r0", "verdict": "rejected"}], "ben")["disputed"] == 0


@pytest.mark.parametrize(
    ("answer", "cell", "known"),
    [
        *(("Delaware", "delaware", True), ("true", "TRUE", True), ("0012", "12", True), ("March 5", "05.03.", True)),
        *(("Delaware", "Utah", False), ("1001", "1003", False), ("", "Utah", False)),
    ],
)
def test_rows_that_were_sorted_without_their_ids_are_refused(store, tmp_path, answer, cell, known):
    row = {"corpus": "c", "reading_id": "r0", "question": "Who?", "content_hash": "h", "stream": [], "answer": answer}
    Table(store, "answers").insert_new([row])
    given = [{"reading_id": "r0", "verdict": "corrected", "answer": "x", "engine_answer": cell}]
    if known:
        assert feedback(store, tmp_path, given)["verdicts"] == {"corrected": 1}
        return
    with pytest.raises(UsageError, match="line 1: its engine_answer is not this reading's: were the rows sorted"):
        feedback(store, tmp_path, given)


def test_readings_that_nobody_knows_are_counted_and_named(store, tmp_path):
    answered(store, "r0")
    rows = [{"reading_id": name, "verdict": "accepted"} for name in ("r0", "r9")]
    done = feedback(store, tmp_path, rows)
    assert done["unknown_readings"] == 1 and done["unknown"] == [f"{tmp_path / 'feedback.jsonl'}, line 2: r9"]
    with pytest.raises(UsageError, match="none of its 1 readings was answered in any corpus"):
        feedback(store, tmp_path, rows[1:])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("f.csv", "reading_id,answer\nr0,x\n", "the header has no column 'verdict'"),
        ("f.csv", "reading_id,verdict\nr0,maybe\n", "line 2: verdict 'maybe' is none of accepted, rejected, corrected"),
        ("f.csv", "reading_id,verdict\nr0,corrected\n", "line 2: corrected to what?"),
        ("f.csv", "reading_id,verdict\nr0,accepted,x\n", "line 2: more fields than the header has"),
        ("f.csv", "reading_id,verdict\n,accepted\n", "line 2: the reading_id is empty"),
        ("f.csv", "reading_id,verdict\nr0,\n", "holds no verdict"),
        ("f.csv", "reading_id,verdict\nr0,accepted\nr0,rejected\n", "line 3: "),
        ("f.jsonl", '{"reading_id": "r0", "verdict": "accepted"}\nno\n', "line 2, column 1: not JSON"),
        ("f.jsonl", '{"verdict": "accepted"}\n', "line 1: no field 'reading_id'"),
        ("f.jsonl", '{"reading_id": 3, "verdict": "accepted"}\n', "line 1: field 'reading_id' must be a text"),
        ("f.ods", "", "a feedback file is .csv, .xlsx or .jsonl"),
        ("f.xlsx", "", "no Excel workbook"),
    ],
)
def test_feedback_that_cannot_be_read_says_where_and_why(store, tmp_path, name, text, words):
    answered(store, "r0")
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(words)) as error:
        take_feedback(store, path)
    assert str(path) in str(error.value)
    assert not Table(store, "feedback").read().num_rows


def test_answers_are_newer_than_those_of_a_clock_that_was_ahead(store, corpus, config, monkeypatch, caplog):
    ahead = now() + timedelta(days=2)
    with monkeypatch.context() as patched:
        patched.setattr("infra.cluster.reading_worker.now", lambda: ahead)
        ask("c", [asks("a")], config)
    again = config.model_copy(update={"reading": {"segment_tokens": 500}})
    second = ask("c", [asks("a")], again, reread=True)
    assert second["readings"]["read_now"] == 1 and "look at the clocks" in caplog.text
    (shown,) = answer_table(config, "c")
    assert shown["run_id"] == second["run_id"] and ahead < shown["answered_at"] < ahead + timedelta(seconds=1)
