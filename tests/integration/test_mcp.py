"""`memagent mcp`: an assistant's client speaks to the real process over its standard input and output."""

import sys

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from memagent.config import load_config
from memagent.questions import ask
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive
from tests.support.pages import HERE, ROOT


@pytest.fixture
def server(tmp_path, model_folder):
    write_archive(tmp_path / "docs")
    config = load_config(store=str(tmp_path / "store"), engine__kind="scripted", engine__model=str(model_folder))
    corpus = Corpus(Store(config.store), "docs")
    ingest(corpus, [str(tmp_path / "docs")], config, run_id="first")
    remember(corpus, sources=[str(tmp_path / "docs")], questions=[ask(HERON.text)])
    options = ["--store", config.store, "--engine", "scripted", "--model", str(model_folder)]
    return StdioServerParameters(
        command=sys.executable, args=["-m", "memagent", "mcp", *options], env=HERE, cwd=str(ROOT)
    )


async def test_an_assistant_asks_finds_what_is_known_and_quotes_it(server):
    async with Client(stdio_client(server)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"corpora", "ask", "answers", "evidence"}
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"ask"}
        assert "passages" in tools["evidence"].description and "context" not in tools["ask"].input_schema["properties"]

        async def call(name, **arguments):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        (corpus,) = (await call("corpora"))["result"]
        assert corpus == {"corpus": "docs", "documents": 8, "default_questions": [HERON.text]}
        assert (await call("answers", corpus="docs"))["answers"] == []
        asked = await call("ask", corpus="docs", question=OTTER.text, limit=3)
        assert asked["found"] == 4 and asked["readings"] == 8 and len(asked["answers"]) == 3 and asked["run_id"]
        again = await call("ask", corpus="docs", question=OTTER.text, documents=["doc2.txt"])
        assert [answer["answer"] for answer in again["answers"]] == ["1002"] and again["segments"] == 0
        whole = await call("ask", corpus="docs", question=OTTER.text, archive=True)
        assert whole["answers"][0]["evidence"][0]["document"] in {"doc0.txt", "doc2.txt", "doc4.txt", "doc6.txt"}

        known = await call("answers", corpus="docs", question="*AMBER*", document="doc*", found=True, limit=3)
        assert len(known["answers"]) == 3 and known["more"]
        (one,) = (await call("answers", corpus="docs", document="doc2.txt"))["answers"]
        assert one["question"] == OTTER.text and one["answer"] == "1002" and one["review"] == ""
        found = await call("evidence", corpus="docs", reading_id=one["reading_id"], around=30)
        (passage,) = found["passages"]
        assert passage["text"] == passage["place"]["quote"] == "The pass number for amber-otter is 1002."
        text = (ROOT / server.args[4]).parent.joinpath("docs", "doc2.txt").read_text()
        start, end = passage["place"]["quote_start"], passage["place"]["quote_end"]
        assert passage["before"] + passage["text"] + passage["after"] == text[start - 30 : end + 30]
        assert passage["place"]["document"] == "doc2.txt"
        await what_is_wrong_is_said(client)


WRONG = [
    ("ask", {"corpus": "dogs", "question": OTTER.text}, "did you mean 'docs'"),
    ("ask", {"corpus": "docs", "question": " "}, "empty"),
    ("ask", {"corpus": "docs", "question": OTTER.text, "documents": ["no*"]}, "no document"),
    ("answers", {"corpus": "dogs"}, "did you mean 'docs'"),
    ("evidence", {"corpus": "docs", "reading_id": "f" * 32}, "take reading_id of an answer"),
]


async def what_is_wrong_is_said(client):
    for tool, arguments, words in WRONG:
        result = await client.call_tool(tool, arguments)
        assert result.is_error and words in result.content[0].text, (tool, arguments)
