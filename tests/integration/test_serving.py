"""`memagent serve` with the scripted reader, by OpenAI's own client: texts, corpora, streams, errors, limits."""

import asyncio
import http.client
import json
import random
import re
import stat
import subprocess
import sys

import httpx
import httpx2
import openai
import psutil
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from infra.store.claims import is_alive
from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from memagent import ReadingSpec, ScriptedEngine, read
from memagent.config import load_config
from memagent.reading.engine import Completion
from pipelines.io.answers import answer_table
from pipelines.stages.ingest import ingest
from pipelines.web.api.protocol import ChatRequest
from pipelines.web.api.reader import HeldReader
from tests.support.archives import HERON, OTTER, write_archive
from tests.support.pages import HERE, ROOT, blocks
from tests.support.ports import first_port
from tests.support.serving import serving
from tests.support.texts import filler
from tests.support.waiting import wait_for

SERVE = ROOT / "docs" / "serve.md"
TEXT = filler(random.Random(1), 300) + " The pass number for amber-otter is 4711. " + filler(random.Random(2), 300)


@pytest.fixture(scope="module")
def config(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("serving")
    write_archive(folder / "docs")
    config = load_config(store=str(folder / "store"), engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(Store(config.store), "docs"), [str(folder / "docs")], config, run_id="first")
    remember(Corpus(Store(config.store), "docs"), sources=[str(folder / "docs")])
    return config


@pytest.fixture(scope="module")
def options(config):
    return ["--engine=scripted", f"--model={config.engine.model}"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory, config, options):
    port = first_port(31_000, 400)
    with serving(tmp_path_factory.mktemp("endpoint"), config.store, port, [*options, "--max-bytes=200000"]) as running:
        yield running


def test_an_assistant_finds_the_corpora_over_http(endpoint):
    async def found():
        with_token = httpx2.AsyncClient(headers={"Authorization": f"Bearer {endpoint.token}"})
        streams = streamable_http_client(f"{endpoint.base}/mcp", http_client=with_token)
        async with with_token, Client(streams) as client:
            return (await client.call_tool("corpora", {})).structured_content

    assert [corpus["corpus"] for corpus in asyncio.run(found())["result"]] == ["docs"]


def test_one_server_has_the_review_pages_and_the_metrics_too(endpoint):
    (link,) = re.findall(r"logs in once with (\S+)", endpoint.log.read_text())
    with httpx.Client(follow_redirects=True) as browser:
        assert "memagent review --link" in browser.get(f"{endpoint.base}/").text
        assert "Answers" in browser.get(link).text
    assert httpx.get(f"{endpoint.base}/metrics").status_code == 401
    token = (endpoint.log.parent / "config" / "memagent" / "metrics" / "token").read_text().strip()
    counts = httpx.get(f"{endpoint.base}/metrics", headers={"Authorization": f"Bearer {token}"})
    assert counts.status_code == 200 and "memagent_runs_total" in counts.text


def said(question=OTTER.text, **more):
    return {"messages": [{"role": "user", "content": question}], **more}


def test_a_text_of_the_request_is_read_as_anywhere_else(endpoint, model_folder):
    spec = ReadingSpec.load(str(model_folder))
    same = asyncio.run(read(TEXT, OTTER.text, ScriptedEngine(spec.prompts).generate, spec))
    answer = endpoint.client().chat.completions.create(model="memagent", **said(), extra_body={"document": TEXT})
    (choice,) = answer.choices
    assert choice.message.content == same.answer == "4711" and choice.finish_reason == "stop"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (same.prompt_tokens, same.output_tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    about = answer.memagent
    assert about["segments"] == same.segments > 10 and about["conversations"] == same.segments + 1
    assert about["policy_id"].startswith("scripted@") and about["run_id"] is None
    (place,) = about["answers"][0]["evidence"]
    assert TEXT[place["quote_start"] : place["quote_end"]] == place["quote"] == same.evidence[0].quote
    assert "amber-otter is 4711" in place["quote"]


def test_what_a_request_says_of_sampling_and_stops_is_done(endpoint):
    ask = endpoint.client().chat.completions.create
    cut = ask(model="memagent", **said(), max_tokens=2, extra_body={"document": TEXT})
    assert cut.choices[0].finish_reason == "length" and cut.choices[0].message.content != "4711"
    stopped = ask(model="memagent", **said(), stop=["1"], extra_body={"document": TEXT})
    assert stopped.choices[0].message.content == "47" and stopped.choices[0].finish_reason == "stop"
    missing = ask(model="memagent", **said(HERON.text), extra_body={"document": TEXT})
    assert missing.choices[0].message.content == "not found" and missing.memagent["found"] == 0
    split = ask(model="memagent", **said(f"{TEXT}\n{OTTER.text}"), extra_body={"split": "last-line"})
    assert split.choices[0].message.content == "4711" and split.memagent["question"] == OTTER.text


def test_a_stream_ends_with_evidence_and_usage(endpoint):
    create = endpoint.client().chat.completions.create
    chunks = list(
        create(
            model="memagent",
            **said(),
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"document": TEXT},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "4711"
    assert chunks[-1].usage.prompt_tokens > 1000 and not chunks[-1].choices
    assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-2].memagent["segments"] > 10
    (found,) = [chunk.memagent for chunk in chunks if getattr(chunk, "memagent", {}).get("evidence")]
    assert "4711" in found["evidence"][0]["quote"]


def test_a_corpus_is_asked_in_a_run_and_not_read_twice(endpoint, config):
    client = endpoint.client()
    assert [model.id for model in client.models.list()] == ["memagent", "corpus:docs", "archive:docs"]
    assert client.models.retrieve("corpus:docs").owned_by == "memagent"
    first = client.chat.completions.create(model="corpus:docs", **said())
    about = first.memagent
    assert about["readings"] == 8 and about["found"] == 4 and about["segments"] > 8 and first.usage.prompt_tokens > 500
    assert set(first.choices[0].message.content.splitlines()) == {f"doc{i}.txt: {1000 + i}" for i in (0, 2, 4, 6)}
    rows = {row["document"]: row for row in answer_table(config, "docs", about["run_id"])}
    assert len(rows) == 8
    for answer in about["answers"]:
        row, (place,) = rows[answer["document"]], answer["evidence"]
        assert answer["reading_id"] == row["reading_id"] and place["quote"] == row["evidence"][0]["quote"]
        assert place["document"] == answer["document"] and answer["answer"] in place["quote"]
    again = client.chat.completions.create(model="corpus:docs", **said())
    assert again.usage.total_tokens == 0 and again.memagent["segments"] == 0 and again.memagent["found"] == 4
    chosen = client.chat.completions.create(model="corpus:docs", **said(), extra_body={"documents": ["doc[01].txt"]})
    assert chosen.choices[0].message.content == "doc0.txt: 1000" and chosen.memagent["readings"] == 2
    stale = client.chat.completions.create(
        model="corpus:docs", **said(), extra_body={"documents": ["doc2.txt", "gone.txt"]}
    )
    said_stale = "without an answer: no-document (1)"
    assert stale.choices[0].message.content == f"doc2.txt: 1002\n{said_stale}" and stale.memagent["failed"] == 1
    assert stale.memagent["warnings"][-1] == said_stale
    few = client.chat.completions.create(model="corpus:docs", **said(), extra_body={"limit": 1})
    assert len(few.memagent["answers"]) == 1 and few.memagent["found"] == 4
    assert few.choices[0].message.content.splitlines()[1:] == ["... 3 more found (limit is 1)"]
    for limit, lines in ((0, ["... 4 more found (limit is 0)"]), (3, few.choices[0].message.content.splitlines()[:1])):
        asked = dict(model="corpus:docs", **said(), extra_body={"limit": limit})
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(**asked, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert streamed == whole and whole.splitlines()[: len(lines)] == lines
    text = client.chat.completions.create(model="memagent", **said(), extra_body={"document": TEXT, "limit": 0})
    assert text.choices[0].message.content == "4711", "one answer, which has no limit"
    row = Table(Store(config.store), "runs").read("docs").to_pylist()[-1]
    assert row["status"] == "completed"


def test_an_error_in_a_stream_is_its_last_event(endpoint):
    stream = endpoint.client().chat.completions.create(
        model="corpus:docs", **said(), stream=True, extra_body={"documents": ["no*"]}
    )
    with pytest.raises(openai.APIError, match="no document of the corpus"):
        list(stream)


def test_an_archive_is_one_stream_whose_evidence_names_its_document(endpoint):
    chunks = list(endpoint.client().chat.completions.create(model="archive:docs", **said(), stream=True))
    answers = [chunk.memagent for chunk in chunks if getattr(chunk, "memagent", {}).get("reading_id")]
    (answer,) = answers
    assert answer["answer"] in {"1000", "1002", "1004", "1006"}
    assert answer["evidence"][0]["document"] == f"doc{answer['answer'][-1]}.txt"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer["answer"]


@pytest.mark.parametrize(
    ("model", "fields", "status", "words"),
    [
        ("memagent", {}, 400, "no document to read"),
        ("memagent", {"document": TEXT, "n": 3}, 400, "has no n"),
        ("corpus:dogs", {}, 404, "did you mean 'corpus:docs'"),
        ("gpt-5", {}, 404, "there are: memagent"),
        ("corpus:docs", {"document": TEXT}, 400, "leave `document` out"),
        ("corpus:docs", {"documents": ["no*"]}, 400, "no document of the corpus"),
        ("memagent", {"document": "x" * 300_000}, 413, "larger than 200,000 bytes"),
    ],
)
def test_wrong_requests_get_openais_errors(endpoint, model, fields, status, words):
    n = fields.pop("n", None)
    with pytest.raises(openai.APIStatusError, match=words) as refused:
        endpoint.client().chat.completions.create(model=model, **said(), **({"n": n} if n else {}), extra_body=fields)
    assert refused.value.status_code == status and refused.value.type == "invalid_request_error"


def test_only_who_has_the_token_is_served_and_only_under_its_own_names(endpoint, tmp_path):
    with pytest.raises(openai.AuthenticationError, match="in which file the API key is"):
        endpoint.client(api_key="wrong").models.list()
    assert openai.OpenAI(base_url=endpoint.url, api_key=endpoint.token.partition(":")[2]).models.list().data
    assert httpx.get(f"{endpoint.base}/v1/models", headers={"Host": "evil.example"}).status_code == 400
    assert httpx.post(f"{endpoint.base}/mcp", json={}).status_code == 401
    assert _raw(endpoint, "GET", "/v1/nothing") == (404, "no_such_route")
    assert _raw(endpoint, "GET", "/v1/chat/completions") == (405, "no_such_route")
    assert _raw(endpoint, "POST", "/v1/chat/completions", body=b"{") == (400, "invalid_json")
    assert _raw(endpoint, "POST", "/v1/chat/completions", body=b"[" * 100_000) == (400, "invalid_json")
    assert _raw(endpoint, "POST", "/v1/chat/completions", body=b"[1]") == (400, "invalid_json")
    token = next((endpoint.log.parent / "config" / "memagent" / "serve").rglob("token"))
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and endpoint.token not in endpoint.log.read_text()


def _raw(endpoint, method, path, body=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    headers = {"Authorization": f"Bearer {endpoint.token}", "Host": host or f"127.0.0.1:{endpoint.port}"}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    code = json.loads(response.read())["error"]["code"]
    connection.close()
    return response.status, code


def test_a_client_that_goes_ends_its_reading_and_too_many_are_told_to_come_again(tmp_path, config, options):
    slow = [*options, "--set=engine.scripted_delay=3000", "--at-once=2"]
    with serving(tmp_path, config.store, first_port(31_000, 400, 1), slow) as endpoint:
        create = endpoint.client().chat.completions.create
        text = create(model="memagent", **said(), stream=True, extra_body={"document": TEXT})
        corpus = create(model="corpus:docs", **said(HERON.text), stream=True)
        progress = [_first_progress(stream) for stream in (text, corpus)]
        assert progress[0]["segments_read"] == 0 and progress[0]["segments"] > 10 and progress[1] == {"answers": 0}
        with pytest.raises(openai.RateLimitError, match="2 requests are being read") as refused:
            create(model="memagent", **said(), extra_body={"document": TEXT})
        assert refused.value.response.headers["retry-after"] == "5"
        runs = Table(Store(config.store), "runs")
        (begun,) = [row["run_id"] for row in runs.read("docs").to_pylist() if row["status"] == "running"]
        assert is_alive(Store(config.store), begun)
        text.close()
        corpus.close()
        wait_for(lambda: not is_alive(Store(config.store), begun), endpoint.process, endpoint.log.read_text)
        stream = wait_for(lambda: _accepted(create), endpoint.process, endpoint.log.read_text)
        wait_for(lambda: _gave_up(create), endpoint.process, endpoint.log.read_text)
        other = wait_for(lambda: _accepted(create), endpoint.process, endpoint.log.read_text)
        for reading in (stream, other):
            assert _first_progress(reading)["segments_read"] == 0, "and it still reads when the server is told to stop"


def test_an_engine_that_dies_is_started_again(tmp_path, config, options):
    fragile = [*options, "--set=engine.scripted_process=true", "--set=pool.engine_restarts=1"]
    with serving(tmp_path, config.store, first_port(31_000, 400, 2), fragile) as endpoint:
        create = endpoint.client().chat.completions.create

        def ask():
            return create(model="memagent", **said(), extra_body={"document": TEXT}).choices[0].message.content

        assert ask() == "4711"
        for _ in range(3):  # an answer in between, each time
            (engine,) = psutil.Process(endpoint.process.pid).children()
            engine.kill()
            engine.wait()
            assert ask() == "4711"


def test_a_server_whose_engine_is_gone_ends(tmp_path, config, options):
    last = [*options, "--set=engine.scripted_process=true", "--set=pool.engine_restarts=0"]
    with serving(tmp_path, config.store, first_port(31_000, 400, 3), last, status=1) as endpoint:
        (engine,) = psutil.Process(endpoint.process.pid).children()
        engine.kill()
        with pytest.raises(openai.InternalServerError) as gone:
            endpoint.client().chat.completions.create(model="memagent", **said(), extra_body={"document": TEXT})
        assert gone.value.status_code == 503 and gone.value.code == "engine_died"
    assert "memagent: engine processes keep crashing" in endpoint.log.read_text()


def _first_progress(stream):
    return next(chunk.memagent for chunk in stream if hasattr(chunk, "memagent"))


def _gave_up(create):
    """Wait for a whole answer for a while, and then go."""
    try:
        create(model="memagent", **said(), extra_body={"document": TEXT}, timeout=5)
    except openai.APITimeoutError:
        return True
    except openai.RateLimitError:  # those that went before are not gone yet
        return False


def _accepted(create):
    try:
        return create(model="memagent", **said(), stream=True, extra_body={"document": TEXT})
    except openai.RateLimitError:
        return None


@pytest.mark.parametrize("example", blocks(SERVE, "python"), ids=lambda code: code.strip().splitlines()[-1][:40])
def test_the_examples_of_the_page_run_as_they_stand(example, endpoint, tmp_path):
    compile(example, "example.py", "exec")
    if any(name in example for name in ("langchain", "llama_index", "inspect_ai")):  # these are no dependencies
        return
    example = example.replace("127.0.0.1:4400", f"127.0.0.1:{endpoint.port}").replace("corpus:notes", "corpus:docs")
    (tmp_path / ".config").symlink_to(endpoint.log.parent / "config")
    home = {**HERE, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, env=home)
    assert done.returncode == 0, done.stderr
    assert "4471902" in done.stdout or done.stdout == "not found"


async def test_readings_of_several_requests_are_batched_on_one_engine(config, monkeypatch):
    """The engine here answers only when two requests wait for it: were they read in turn, this would never end."""
    reader = HeldReader(config)
    generate, waiting, met = ScriptedEngine.generate, [], []

    async def together(self, ids, sampling, priority=0) -> Completion:
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == 2:
            met.append(2)
            for other in waiting:
                other.set_result(None)
            waiting.clear()
        await mine
        return await generate(self, ids, sampling, priority)

    monkeypatch.setattr(ScriptedEngine, "generate", together)
    await reader.start()

    async def ask(text):
        body = {"model": "memagent", **said(), "document": text}
        reading = await reader.reading(ChatRequest.model_validate(body))
        return [answer.answer async for answer in reading.answers()], reading.ended()

    text = "The pass number for amber-otter is 1."
    (first, ended), (second, _) = await asyncio.gather(ask(text), ask(text.replace("1", "2")))
    assert (first, second) == (["1"], ["2"]) and len(met) == ended.about.conversations == 2
    await reader.stop()
