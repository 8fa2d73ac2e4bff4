"""The page of the tables: its queries give what the product shows, and it has every column."""

import re
from pathlib import Path
from typing import Any

import pytest

from infra.store import schemas
from infra.store.location import Store
from memagent.config import Config, load_config
from memagent.questions import ask
from pipelines.ask import AskRequest
from pipelines.io.answers import answer_table
from pipelines.target import ask_target, find_target
from tests.integration.test_examples import NOTE
from tests.support.pages import ROOT, blocks

TABLES = ROOT / "docs" / "tables.md"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Config:
    """An archive with a document that changed, one that went, and two of the same text."""
    folder = tmp_path_factory.mktemp("tables")
    notes = folder / "notes"
    notes.mkdir()
    for name in ("monday", "tuesday", "copy", "gone"):
        (notes / f"{name}.md").write_text(NOTE if name in ("monday", "copy") else f"{name}. {NOTE}")
    config = load_config(store=str(folder / "archive"), engine__kind="scripted", engine__model=str(model_folder))
    whom = find_target(Store(config.store), str(notes))
    questions = [ask("What is the access code of cedar-gate?"), ask("Who painted it?")]
    ask_target(whom, AskRequest("notes", questions, config))
    (notes / "tuesday.md").write_text("Lunch is at noon. " + NOTE.replace("4471902", "5550100"))
    (notes / "gone.md").unlink()
    ask_target(whom, AskRequest("notes", questions[:1], config))
    ask_target(whom, AskRequest("notes", questions[:1], config, archive=True))
    return config


def shown(config: Config) -> list[tuple[str, str, str]]:
    """What `memagent answers` shows of single documents."""
    rows = [(row["document"], row["question"], row["answer"]) for row in answer_table(config, "notes")]
    return sorted(row for row in rows if row[0])


def test_the_answers_with_their_documents_are_what_the_command_shows(archive, monkeypatch):
    monkeypatch.chdir(Path(archive.store).parent)
    expected = shown(archive)
    assert len(expected) == 5 and {row[0] for row in expected} == {"copy.md", "monday.md", "tuesday.md"}
    register, polars, pandas = blocks(TABLES, "python")
    (sql,) = blocks(TABLES, "sql")
    names: dict[str, Any] = {}
    exec(register, names)
    duckdb = names["duckdb"]
    rows = duckdb.sql(sql).project("document, question, answer").fetchall()
    assert sorted(rows) == expected
    for code in (polars, pandas):
        names = {}
        exec(code, names)
        now = names["now"]
        columns = [now[name].to_list() for name in ("document", "question", "answer")]
        assert sorted(zip(*columns, strict=True)) == expected
    (unnest,) = re.findall(r"`(select reading_id, unnest\([^`]*)`", TABLES.read_text().replace("\n", " "))
    assert "4471902" in str(duckdb.sql(unnest).project("quote").fetchall())


def test_the_page_has_every_table_and_column():
    page = TABLES.read_text()
    for name, table in schemas.TABLES.items():
        part = page.split(f"## `{name}`: Delta")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == table.schema.names
