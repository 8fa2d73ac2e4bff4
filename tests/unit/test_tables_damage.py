import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from infra.maintenance.erasure import erase, interrupted, write_down
from infra.maintenance.integrity import log_damage, mend_log, misstated, unreadable
from infra.store.claims import is_alive, used
from infra.store.corpora import forgotten, remember
from infra.store.data_files import write_data_file
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import now
from memagent.errors import ConfigError, MemagentError


def test_what_a_reader_stumbles_on_is_named(tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": ["r", "r"], "b": [1, 2]}), path, store_schema=False)
    whole, store, found = path.read_bytes(), Store(str(tmp_path)), set()
    for place in range(len(whole)):
        for value in (0, 2):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            said = unreadable(store, str(path))
            found.add(said.partition(":")[0])
            if said:
                continue
            assert ds.dataset(path).to_table().num_rows == pq.read_metadata(path).num_rows
    assert {"", "it cannot be read", "it has 0 of its 2 rows"} <= found


def five_verdicts(folder, checkpoint=None):
    """Return a table with five rows, one in each of the commits 1 to 5; after some of them it makes a checkpoint."""
    table = Table(Store(str(folder)), "feedback")
    table.create()
    for number in range(1, 6):
        table.append([{"corpus": "c", "reading_id": f"r{number}", "verdict": "accepted", "given_at": now()}])
        if number == checkpoint:
            table._open().create_checkpoint()
    return table


def readings(table):
    return sorted(row["reading_id"] for row in table.read("c").to_pylist())


def log(folder, name="*"):
    (path,) = (folder / "feedback" / "_delta_log").glob(name)
    return path


def commit(number):
    return f"{number:020}.json"


HARMS = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut early": lambda path: path.write_bytes(path.read_bytes()[:13]),
    "emptied": lambda path: path.write_bytes(b""),
    "overwritten": lambda path: path.write_bytes(bytes(range(256))),
}


@pytest.mark.parametrize("number", [5, 3, 0])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_commit_is_named_and_a_repair_loses_its_rows_alone(tmp_path, harm, number):
    table = five_verdicts(tmp_path)
    store = Store(str(tmp_path))
    assert log_damage(store, "feedback") == type(log_damage(store, "feedback"))("feedback", {}, {}, "")
    HARMS[harm](log(tmp_path, commit(number)))
    if harm != "emptied" or number == 0:
        with pytest.raises(MemagentError, match=r"log of table feedback in .* memagent check CORPUS"):
            table.read("c")
    damage = log_damage(store, "feedback")
    assert (list(damage.commits), damage.checkpoints, damage.lost) == ([number], {}, "")
    mend_log(store, damage)
    assert readings(table) == [f"r{each}" for each in range(1, 6) if each != number]
    assert not log_damage(store, "feedback").commits and store.list("damaged", suffix=commit(number))
    table.append([{"corpus": "c", "reading_id": "r6", "verdict": "accepted", "given_at": now()}])
    assert "r6" in readings(table)


LETTERS = [
    *(
        ("type", "tyde"),
        ("nullable", "nullabme"),
        ("metaData", "letaData"),
        ('"provider', '"prnvider'),
        ('{"add', '{"adc'),
    ),
    *(("modificationTime", "modificatiooTime"), ("partitionValues", "partitiooValues"), ('"size', '"siye')),
    *(
        ('"dataChange":true', '"dataChange":tsue'),
        ('"path', '"pbth'),
        ('{"corpus":', '{"korpus":'),
        ('":"c"}', '":"c"|'),
    ),
    *(("minReaderVersion", "minReadesVersion"), ('"tags":null', '"tags":n\xffll'), ('"size":', '"size":0')),
    *(('}}\n{"protocol', '}}\x0b{"protocol'), ('}}\n{"metaData', '}}J{"metaData'), ('}\n{"add', '}\x8a{"add')),
    *(
        ('name\\":\\"reading_id', 'name\\":\\"reading_ie'),
        ('\\"numRecords\\":', '\\"numRecords\\";'),
        ('"schemaString":', '"schemaString";'),
    ),
    *(('"protocol":', '"protocol";'), ('"format":{', '"format";{')),
]


@pytest.mark.parametrize(("was", "is_now"), LETTERS)
def test_a_commit_with_a_changed_letter_is_written_again_and_nothing_is_lost(tmp_path, was, is_now):
    table, store = Table(Store(str(tmp_path)), "feedback"), Store(str(tmp_path))
    for number in range(1, 3):  # the first commit has the columns and a row, as those of `append` do
        table.append([{"corpus": "c", "reading_id": f"r{number}", "verdict": "accepted", "given_at": now()}])
    path = next(p for p in (log(tmp_path, commit(1)), log(tmp_path, commit(0))) if was in p.read_text())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(was.encode(), is_now.encode("latin-1"), 1))
    damage = log_damage(store, "feedback")
    assert list(damage.commits) == list(damage.mended) == [int(path.stem)]
    mend_log(store, damage)
    assert readings(table) == ["r1", "r2"] and table.count("c") == 2
    assert log_damage(store, "feedback") == type(damage)("feedback", {}, {}, "")
    assert store.list("damaged", suffix=path.name)


def test_a_name_beyond_the_basic_plane_is_found_in_the_statistics_of_a_file(tmp_path):
    corpus, table = Corpus(Store(str(tmp_path)), "c"), Table(Store(str(tmp_path)), "sources")
    names = ["\U00020bb7\u91ce.txt", "\U0001f600.txt"]
    for number, name in enumerate(names):
        file = write_data_file(corpus, "sources", [{"corpus": "c", "source": name, "seen_at": now()}])
        table.commit_files("c", [file], writer="w", number=number)
    assert not any(misstated(corpus.store, "sources", entry) for entry in table.entries().to_pylist())
    table.delete("c", source=names)
    assert table.read("c").num_rows == 0


def test_what_is_left_of_several_lines_is_not_guessed(tmp_path):
    table, store = five_verdicts(tmp_path), Store(str(tmp_path))
    path = log(tmp_path, commit(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(300) + whole[500:])
    damage = log_damage(store, "feedback")
    assert list(damage.commits) == [2] and not damage.mended
    path.write_bytes(whole.replace(b"WRITE", "a\u2028b".encode()))
    assert not log_damage(store, "feedback").commits, "a text may have the breaks of lines that JSON allows"
    assert len(readings(table)) == 5


@pytest.mark.parametrize("harm", [lambda line: bytes(len(line)), lambda line: line[:20] + b"\n" + line[20:]])
def test_what_a_commit_says_of_itself_is_not_needed_for_its_rows(tmp_path, harm):
    table, store = five_verdicts(tmp_path), Store(str(tmp_path))
    path = log(tmp_path, commit(2))
    first, _, rest = path.read_bytes().partition(b"\n")
    assert b"commitInfo" in first
    path.write_bytes(harm(first) + b"\n" + rest)
    damage = log_damage(store, "feedback")
    assert list(damage.mended) == [2]
    mend_log(store, damage)
    assert len(readings(table)) == 5
    for copies in (2, 3):
        path.write_bytes(b"{")
        mend_log(store, log_damage(store, "feedback"))
        assert len([one for one in store.list("damaged", suffix="") if path.name in one]) == copies, "none is replaced"


def test_the_first_commit_is_made_again_where_it_is_gone(tmp_path):
    table, store = five_verdicts(tmp_path), Store(str(tmp_path))
    log(tmp_path, commit(0)).unlink()
    damage = log_damage(store, "feedback")
    assert (list(damage.commits), damage.lost) == ([0], "")
    mend_log(store, damage)
    assert readings(table) == [f"r{number}" for number in range(1, 6)]
    for number in (0, 1):
        log(tmp_path, commit(number)).unlink()
    assert "before version 2 is gone" in log_damage(store, "feedback").lost


def test_a_log_that_looks_whole_and_cannot_be_opened_is_said(tmp_path):
    table, store = five_verdicts(tmp_path), Store(str(tmp_path))
    path = log(tmp_path, commit(0))
    features = b'"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["x"],"writerFeatures":["x"]'
    path.write_bytes(path.read_bytes().replace(b'"minReaderVersion":1,"minWriterVersion":2', features))
    damage = log_damage(store, "feedback")
    assert "log of table feedback" in damage.lost and "memagent" not in damage.lost.partition("is damaged")[2]
    with pytest.raises(MemagentError):
        table.read("c")


def test_a_commit_that_is_gone_between_others_is_named(tmp_path):
    table = five_verdicts(tmp_path)
    log(tmp_path, commit(2)).unlink()
    damage = log_damage(Store(str(tmp_path)), "feedback")
    assert damage.commits == {2: "it is gone"}
    mend_log(Store(str(tmp_path)), damage)
    assert readings(table) == ["r1", "r3", "r4", "r5"]


@pytest.mark.parametrize("harm", [*HARMS, "gone"])
def test_a_damaged_checkpoint_is_not_missed_while_the_commits_are_there(tmp_path, harm):
    table, store = five_verdicts(tmp_path, checkpoint=3), Store(str(tmp_path))
    assert not log_damage(store, "feedback").checkpoints
    path = log(tmp_path, "*.checkpoint.parquet")
    path.unlink() if harm == "gone" else HARMS[harm](path)
    damage = log_damage(store, "feedback")
    assert damage.checkpoints and not damage.commits and not damage.lost
    mend_log(store, damage)
    assert readings(table) == ["r1", "r2", "r3", "r4", "r5"]
    assert not log_damage(store, "feedback").checkpoints


@pytest.mark.parametrize("gone", ["commits before", "log"])
def test_a_log_that_is_lost_is_said_and_nothing_is_made_up(tmp_path, gone):
    table, store = five_verdicts(tmp_path, checkpoint=3), Store(str(tmp_path))
    for path in (tmp_path / "feedback" / "_delta_log").iterdir():
        if gone == "log" or path.name < commit(4) or path.name == "_last_checkpoint":
            path.unlink()
    assert "gone" in log_damage(store, "feedback").lost
    assert not log_damage(store, "answers").lost, "a table that nobody has made"
    if gone != "log":
        with pytest.raises(MemagentError, match="memagent check"):
            table.read("c")


def test_no_path_and_no_file_lies_outside_of_the_store(tmp_path):
    store = Store(str(tmp_path / "store"))
    for parts in (("..", "x"), ("segments", "../../x"), ("segments/../../x",)):
        with pytest.raises(MemagentError, match="no path within the store"):
            store.path(*parts)
    assert store.path("a..b", "c...d").endswith("/store/a..b/c...d")
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as refused:
        Store("s3://key:secret@bucket/prefix")
    assert "secret" not in str(refused.value)


NOTHING = {name: [] for name in ("doc_ids", "content_hashes", "reading_ids", "sources", "qa_ids", "parts", "policies")}
WHOLE = NOTHING | {"texts": 0, "kept_texts": 0, "rows": 0}


@pytest.mark.parametrize(
    "harm",
    [
        {"parts": ["../outside.parquet"]},
        {"parts": ["answers/corpus=c/part.parquet"]},
        {"content_hashes": ["../../outside"]},
        {"reading_ids": "r1"},
        {"sources": [1]},
        {"rows": "many"},
        None,
    ],
)
def test_a_crafted_forgetting_is_refused_before_anything_is_deleted(tmp_path, harm):
    (tmp_path / "outside.parquet").write_text("mine")
    store = Store(str(tmp_path / "store"))
    journal = {"corpus": "c", "erased": {"c": WHOLE}, "passages": [], "unsearched": 0}
    write_down(store, journal)
    assert interrupted(store) == journal
    write_down(store, journal | {"erased": {"c": WHOLE | harm if harm is not None else []}})
    with pytest.raises(MemagentError, match=r"forgetting\.json of .* is damaged|no path within") as refused:
        erase(store, interrupted(store))
    assert refused and (tmp_path / "outside.parquet").exists()


HALF = '"process": 1, "started": 1}'


@pytest.mark.parametrize("text", ["{" + HALF, '{"host": 5, ' + HALF])
def test_a_half_heartbeat_is_of_a_dead_run_and_half_claims_are_none(tmp_path, text):
    store = Store(str(tmp_path))
    store.write_bytes(text.encode(), "runs", "r", "heartbeat.json")
    store.write_bytes(b'{"r": 5}', "claims", "c.json")
    assert not is_alive(store, "r")
    with used(Corpus(store, "c"), "mine", wait=False, show=None):
        assert is_alive(store, "mine")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b'{"forgotten": "h1"}', b'{"tags": []}', b'{"sources": 5}'),
        *(b'{"questions": [5]}', b'{"questions": [{"question_id": "q"}]}', b'{"sourcds": ["/a"]}'),
    ],
)
def test_damaged_settings_of_a_corpus_are_said_and_not_overwritten(tmp_path, text):
    corpus = Corpus(Store(str(tmp_path)), "c")
    corpus.store.write_bytes(text, "corpora", "c.json")
    for use in (forgotten, lambda corpus: remember(corpus, sources=["/a"])):
        with pytest.raises(MemagentError, match=r"corpora/c\.json of .* is damaged"):
            use(corpus)
    assert corpus.store.read_bytes("corpora", "c.json") == text
