"""A folder is asked: its corpus is made on the way, answers come as they are found, and a dry run starts nothing."""

import json
import threading
import time

import pytest

from infra.cluster import session
from infra.readers import ReaderSpec
from infra.store.corpora import corpora, default_questions, remember, sources_of
from infra.store.delta import Table
from infra.store.documents import current_documents
from infra.store.location import Corpus, Store
from infra.store.runs import begin_run
from infra.store.schemas import now
from memagent.config import load_config
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.records import Question
from pipelines.ask import AskRequest, ask, digest
from pipelines.io.answers import answer_table, answered_before, newly_answered
from pipelines.operate.dry_run import ask_dry_run, digest_dry_run
from pipelines.operate.status import corpus_status, find_run, show_status
from pipelines.report.data import load_run
from pipelines.stages.ingest import ingest
from pipelines.target import Target, absolute, ask_target, find_target, news
from tests.support.archives import HERON, OTTER, write_archive


@pytest.fixture
def archive(tmp_path):
    write_archive(tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
def config(store, model_folder):
    return load_config(
        store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=["flush_seconds=0.2"]
    )


class Watch:
    """Keeps what it is told."""

    def __init__(self):
        self.before, self.after, self.early = [], [], False

    def check(self):
        pass

    def planned(self, corpus, run_id):
        self.corpus, self.run_id = corpus, run_id
        self.before = list(answered_before(corpus, run_id))

    def answered(self, files):
        runs = Table(self.corpus.store, "runs").read("docs", ["run_id", "status"]).to_pylist()
        self.early |= {"run_id": self.run_id, "status": "running"} in runs
        self.after += newly_answered(self.corpus, self.run_id, files)


def without_gold(rows):
    return sorted(({**row, "gold": None} for row in rows), key=lambda row: (row["document"], row["question_id"]))


def test_a_folder_is_a_corpus_and_answers_come_before_the_run_ends(store, archive, config):
    (archive / "copy.txt").write_text((archive / "doc0.txt").read_text())
    whom = find_target(store, str(archive))
    assert (whom.corpus.name, whom.sources) == ("docs", (str(archive),))
    watch = Watch()
    summary = ask_target(whom, AskRequest("docs", [OTTER], config, watch=watch))
    assert summary["ingest"]["new"] == 9 and summary["readings"]["read_now"] == 8
    assert watch.early, "answers are told of while the run goes on"
    assert watch.before == [] and len(watch.after) == 9, "equal texts are read once and answered for each document"
    assert without_gold(watch.after) == without_gold(answer_table(config, "docs", summary["run_id"]))
    again = Watch()
    ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER, HERON], config, watch=again))
    assert without_gold(again.before) == without_gold(watch.after)
    assert {row["question_id"] for row in again.after} == {"heron"}


def test_a_watch_that_cannot_go_on_does_not_stop_the_readings(store, archive, config):
    class Closed(Watch):
        def answered(self, files):
            self.files = getattr(self, "files", 0) + 1
            raise BrokenPipeError

    watch = Closed()
    summary = ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER, HERON], config, watch=watch))
    assert summary["readings"]["read_now"] == 16 and watch.files == 1


def test_a_watch_that_ends_the_run_leaves_what_was_answered(store, archive, config):
    class Enough(Watch):
        def answered(self, files):
            raise MemagentError("enough")

    with pytest.raises(MemagentError, match="enough"):
        ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER], config, watch=Enough()))
    assert Table(store, "answers").read("docs").num_rows
    done = ask("docs", [OTTER], config)["readings"]
    assert done["answered_before"] > 0 and done["answered_before"] + done["read_now"] == 8


def test_answers_are_committed_while_a_long_document_is_read_which_a_watch_can_end(store, archive, model_folder):
    (archive / "long.txt").write_text("The keeper walks along the shore.\n" * 20_000)
    slow = ["engine.scripted_delay=0.5", "commit_seconds=0.1"]
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=slow)

    class Patient(Watch):
        def check(self):
            if Table(store, "answers").read("docs").num_rows == 8:
                raise MemagentError("enough")

    began = time.monotonic()
    with pytest.raises(MemagentError, match="enough"):
        ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER], config, watch=Patient()))
    assert time.monotonic() - began < 60, "its hundreds of segments would take minutes"


def test_the_archive_as_one_stream_is_told_like_any_answer(store, archive, config):
    watch = Watch()
    ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER], config, archive=True, watch=watch))
    (row,) = watch.after
    assert (row["document"], row["title"]) == ("", "all documents, concatenated") and row["found"]


def test_what_is_asked_is_found_by_name_or_path(store, archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other" / "docs"
    other.mkdir(parents=True)
    assert find_target(store, "docs") == Target(Corpus(store, "docs"), (str(archive),))
    remember(Corpus(store, "docs"), sources=[str(archive)])
    assert find_target(store, "docs") == find_target(store, "./docs") == find_target(store, "docs/")
    assert find_target(store, "docs", fetch=False) == Target(Corpus(store, "docs"))
    second = find_target(store, str(other))
    assert second.corpus.name.startswith("docs-") and second.sources == (str(other),)
    remember(second.corpus, sources=[str(other)])
    assert find_target(store, str(other)).corpus == second.corpus
    remember(Corpus(store, "mine"), sources=["s3://bucket/a/*.txt"])
    assert find_target(store, "mine") == Target(Corpus(store, "mine")), (
        "a corpus that is no folder here is asked as it is"
    )
    assert find_target(store, "s3://bucket/a/*.txt").corpus.name == "mine"
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match=r"a folder here that is none of its sources: write \./mine"):
        find_target(store, "mine")
    assert find_target(store, "mine", fetch=False) == Target(Corpus(store, "mine"))
    remember(Corpus(store, "mine"), sources=[str(tmp_path / "mine" / "*.txt")])
    assert find_target(store, "mine") == Target(Corpus(store, "mine")), "some of the folder are its documents"
    (tmp_path / "mine").rename(tmp_path / "whole")
    remember(Corpus(store, "whole"), sources=[str(tmp_path)])
    assert find_target(store, "whole") == Target(Corpus(store, "whole")), "its documents are of the corpus"
    remember(Corpus(store, "near"), sources=["whole/a.txt"])
    (tmp_path / "whole").rename(tmp_path / "near")
    with pytest.raises(UsageError, match="none of its sources"):  # one that was remembered as it was given
        find_target(store, "near")
    (tmp_path / "near").rmdir()
    assert find_target(store, "s3://bucket/Für Sie/").corpus.name == "F-r-Sie"
    for given, says in {"dosc": "'docs'", "othr": "'./other'", "x": "memagent ingest x FOLDER", " ": "nothing"}.items():
        with pytest.raises(UsageError, match=says):
            find_target(store, given)


def test_news_are_what_an_ingest_would_look_at(store, archive, config):
    whom = find_target(store, str(archive))
    first = news(whom, config)
    assert first and first == news(whom, config)
    ingest(whom.corpus, list(whom.sources), config, "r1")
    assert news(whom, config) == ""
    (archive / "late.txt").write_text("Late.")
    second = news(whom, config)
    assert second and second != first
    (archive / "late.txt").unlink()
    (archive / "doc1.txt").unlink()
    assert news(whom, config) not in ("", first, second)


def nothing_starts(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a dry run starts no Ray")

    monkeypatch.setattr("infra.cluster.jobs.ensure_nodes", refuse)
    monkeypatch.setattr(session, "ensure_ray", refuse)
    monkeypatch.setattr(session, "ray_session", refuse)


def files_of(store):
    return sorted(path for suffix in (".parquet", ".json") for path in store.list(suffix=suffix))


def test_a_dry_run_of_a_folder_writes_and_starts_nothing(store, archive, config, monkeypatch):
    nothing_starts(monkeypatch)
    whom = find_target(store, str(archive))
    dry = ask_dry_run(whom, [OTTER, HERON], config)
    assert not corpora(store) and not files_of(store)
    assert (dry["sources_to_ingest"], dry["documents"], dry["readings_to_read"]) == (8, 8, 16)
    monkeypatch.undo()
    done = ask_target(whom, AskRequest("docs", [OTTER, HERON], config))
    for name in ("segments", "conversations", "prompt_tokens"):
        assert dry[name] == pytest.approx(done[name], rel=0.15), name
    again = ask_dry_run(whom, [OTTER, HERON], config)
    assert (again["sources_to_ingest"], again["readings_answered_before"], again["readings_to_read"]) == (0, 16, 0)


def test_a_dry_run_takes_all_rows_of_a_table_that_is_gone_away(store, tmp_path, config):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("a", "b"):
        rows = (json.dumps({"text": f"The pass number for amber-otter is {name}{n}."}) + "\n" for n in range(5))
        (folder / f"{name}.jsonl").write_text("".join(rows))
    whom = find_target(store, str(folder))
    ask_target(whom, AskRequest(whom.corpus.name, [OTTER], config))
    (folder / "b.jsonl").unlink()
    dry = ask_dry_run(whom, [OTTER], config)
    assert (dry["documents"], dry["readings"], dry["readings_answered_before"], dry["readings_to_read"]) == (5, 5, 5, 0)
    new = ask_dry_run(whom, [HERON], config)
    assert (new["documents"], new["readings_to_read"], new["segments"], new["conversations"]) == (5, 5, 5, 10)
    (folder / "c.txt").write_text("The pass number for amber-otter is 4.")
    (folder / "d.txt").write_text("The pass number for amber-otter is 5.")
    (folder / "e.jsonl").write_text("".join(json.dumps({"text": f"Otter {n}"}) + "\n" for n in range(7)))
    assert ask_dry_run(whom, [OTTER], config)["documents"] == 14, "sources of the sample are counted each"


def test_a_model_that_cannot_be_is_said_before_anything_is_read(store, archive, config):
    served = load_config(
        store=config.store, engine__kind="openai", engine__model="gpt-4o-mini", engine__base_url="http://127.0.0.1:9/v1"
    )
    with pytest.raises(ConfigError, match=r"engine\.tokenizer"):
        ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER], served))
    assert not corpora(store)
    ingest(Corpus(store, "c"), [str(archive / "doc0.txt")], config, "r1")
    remember(Corpus(store, "c"), sources=[str(archive)])
    with pytest.raises(ConfigError, match=r"engine\.tokenizer"):
        digest("c", [OTTER], served)
    assert current_documents(Corpus(store, "c")).num_rows == 1, "nothing more was ingested"


def test_a_dry_run_of_a_corpus_guesses_its_segments_and_then_knows_them(store, archive, config, monkeypatch):
    corpus = Corpus(store, "c")
    ingest(corpus, [str(archive)], config, "r1")
    before = files_of(store)
    with monkeypatch.context() as patches:
        nothing_starts(patches)
        dry = ask_dry_run(Target(corpus), [OTTER, HERON], config)
        whole = ask_dry_run(Target(corpus), [OTTER], config, archive=True)
    assert files_of(store) == before
    done = ask("c", [OTTER, HERON], config)
    assert dry["readings_to_read"] == 16
    for name in ("segments", "conversations", "prompt_tokens"):
        assert dry[name] == pytest.approx(done[name], rel=0.15), name
    assert whole["segments"] == pytest.approx(done["segments"] / 2, rel=0.15) and whole["readings_to_read"] == 1
    another = Question("another", "What is the pass number for blue-crane?")
    known = ask_dry_run(Target(corpus), [OTTER, another], config)
    assert (known["readings_answered_before"], known["readings_to_read"]) == (8, 8)
    assert known["segments"] == done["segments"] // 2, "segments that are there are counted, not guessed"


def test_a_dry_run_estimates_by_the_last_run_and_its_engine_start(store, archive, config):
    corpus = Corpus(store, "c")
    ingest(corpus, [str(archive)], config, "r1")
    assert ask_dry_run(Target(corpus), [OTTER], config)["estimated_seconds"] is None, "a scripted reader has no size"
    summary = {
        "policy": ReaderSpec(config).policy.name,
        "engine": "scripted",
        "conversations": 200,
        "engine_seconds": 10.0,
        "stage_seconds": {"read": 40.0},
        "config": {"pool": {"max_size": 1}},
    }
    at = now()
    row = {"corpus": "other", "run_id": "r1", "kind": "ask", "status": "completed", "started_at": at, "ended_at": at}
    row["config"] = "{}"
    short = {**row, "run_id": "r0", "summary": json.dumps({**summary, "conversations": 20})}
    Table(store, "runs").append([short])
    dry = ask_dry_run(Target(corpus), [OTTER], config)
    assert dry["estimate_from"] == "run r0, a short one"
    assert dry["estimated_seconds"] == pytest.approx(dry["conversations"] / 2 + 30, abs=0.1)
    Table(store, "runs").append([{**row, "summary": json.dumps(summary)}, {**short, "run_id": "r2"}])
    dry = ask_dry_run(Target(corpus), [OTTER], config)
    assert dry["estimate_from"] == "run r1"
    assert dry["estimated_seconds"] == pytest.approx(dry["conversations"] / 20 + 30, abs=0.1)


def test_a_dry_digest_sees_new_files_and_leaves_everything_as_it_is(store, archive, config, monkeypatch):
    corpus = Corpus(store, "c")
    remember(corpus, sources=[str(archive)])
    digest("c", [OTTER], config)
    remember(corpus, sources=[str(archive), absolute("/nowhere/emptied")])  # its only document was forgotten
    (archive / "late.txt").write_text("The pass number for amber-otter is 4829104.")
    (archive / "doc0.txt").write_text("The pass number for amber-otter is 4829105.")
    before = files_of(store)
    with monkeypatch.context() as patches:
        nothing_starts(patches)
        dry = digest_dry_run("c", [OTTER, HERON], config)
    assert files_of(store) == before and default_questions(corpus) == [OTTER]
    assert (dry["sources_to_ingest"], dry["documents"]) == (2, 9)
    assert (dry["readings"], dry["readings_answered_before"], dry["readings_to_read"]) == (18, 7, 11)
    (archive / "doc1.txt").unlink()
    (archive / "doc2.txt").rename(archive / "moved.txt")
    (archive / "empty.txt").write_text("")
    (archive / "broken.pdf").write_bytes(b"%PDF-1.7")
    counted = digest_dry_run("c", [OTTER], config)
    assert (counted["documents"], counted["readings"], counted["readings_answered_before"]) == (8, 8, 6 - 1)
    assert counted["readings_to_read"] == 3, "a document that moved is counted as one that has changed"
    assert digest("c", None, config)["readings"]["total"] == 8
    (archive / "doc0.txt").write_text("The pass number for amber-otter is 4829106.")
    (archive / "late.txt").write_text("The pass number for amber-otter is 4829107.")
    assert digest("c", None, config)["readings"]["read_now"] == 2


def test_a_dry_run_says_what_no_run_could_do(store, config):
    with pytest.raises(UsageError, match="memagent ingest c FOLDER"):
        ask_dry_run(Target(Corpus(store, "c")), [OTTER], config)
    with pytest.raises(UsageError, match="no such file"):
        ask_dry_run(Target(Corpus(store, "c"), (absolute("/nowhere/docs"),)), [OTTER], config)


def test_a_run_in_a_thread_leaves_standard_output_alone(tmp_path, archive, config, capsys):
    """A program that reads answers in one thread and prints them in another keeps its own output."""
    elsewhere = config.model_copy(update={"store": str(tmp_path / "elsewhere")})
    whom = find_target(Store(elsewhere.store), str(archive))
    run = threading.Thread(target=lambda: ask_target(whom, AskRequest("docs", [OTTER], elsewhere)))
    run.start()
    while run.is_alive():
        print("mine")
        run.join(0.05)
    assert "mine" in capsys.readouterr().out and sources_of(whom.corpus)


def test_status_counts_what_answers_shows(store, archive, config):
    """A text that several documents have answers for each of them; a changed document's old answer counts no more."""
    (archive / "copy.txt").write_text((archive / "doc0.txt").read_text())
    whom = find_target(store, str(archive))
    ask_target(whom, AskRequest("docs", [OTTER, HERON], config))
    ask_target(whom, AskRequest("docs", [OTTER], config, archive=True))
    (archive / "doc2.txt").write_text("Nothing is here.")
    (archive / "doc4.txt").unlink()
    ask_target(whom, AskRequest("docs", [OTTER], config))
    rows = answer_table(config, "docs")
    state = corpus_status(config, "docs")["corpora"][0]
    assert (state["documents"], state["answers"]) == (8, len(rows))
    assert state["found"] == sum(row["found"] for row in rows) > 0
    show_status({"store": store.url, "corpora": [state]})


def test_a_run_is_found_by_its_beginning_in_its_corpus(store, archive, config):
    whom = find_target(store, str(archive))
    first = ask_target(whom, AskRequest("docs", [OTTER], config, run_id="20261122-071933-85a043"))
    last = ask_target(whom, AskRequest("docs", [HERON], config, run_id="20261123-071933-11ff00"))
    assert find_run(store, "20261122", "docs") == first["run_id"]
    assert find_run(store, "last", "docs") == find_run(store, "last") == last["run_id"]
    with pytest.raises(UsageError, match="in corpus 'other'; the newest are: none"):
        find_run(store, "last", "other")
    begin_run(whom.corpus, "20261124-071933-killed", "ask", {}, [])
    assert find_run(store, "last") == last["run_id"]
    with pytest.raises(UsageError, match=r"no finished run '20261124-.*start the same command again"):
        load_run(store, find_run(store, "20261124"))


def test_the_status_fits_eighty_columns(store, archive, config, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    summary = ask_target(find_target(store, str(archive)), AskRequest("docs", [OTTER], config))
    show_status(corpus_status(config, None))
    said = capsys.readouterr().out
    assert summary["run_id"] in said and "completed" in said
    assert max(map(len, said.splitlines()[1:])) <= 80
