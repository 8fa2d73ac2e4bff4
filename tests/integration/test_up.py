"""`memagent up`: deployments on a real Prefect server that run, tell, and can be cancelled, for its user alone."""

import base64
import json
import stat
import time
import urllib.error
from collections.abc import Iterator
from datetime import datetime, timedelta

import psutil
import pytest

from infra.cluster.session import _jobs_client
from infra.store.corpora import corpora, remember
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.runs import begin_run
from infra.system.processes import tree
from memagent.config import load_config
from memagent.questions import ask
from pipelines.stages.ingest import ingest
from tests.support.browsing import browser  # noqa: F401  (a fixture)
from tests.support.flowing import DEPLOYMENTS, ENDED, QUESTION, Served, serving
from tests.support.hostile_page import attack, hostile_page
from tests.support.mailbox import mailbox
from tests.support.telling import BLOCK, MAIL_BLOCK, OLDER, webhook

pytestmark = pytest.mark.slow
SECONDS = 300
"""That an event is waited for; it comes sooner, but on a busy machine nobody knows when."""


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory, sets: list[str], cluster: str) -> Iterator[Served]:
    """A `memagent up` whose operator has the work done by a cluster, slowly."""
    far = [*sets, "engine.scripted_delay=600", f"ray.jobs_address={cluster}"]
    with serving(tmp_path_factory.mktemp("distant"), far, number=1) as served:
        yield served


def _parameters(corpus: str, folder: object, **more: object) -> list[str]:
    given = {"corpus": corpus, "questions": [QUESTION], "sources": [str(folder)], **more}
    pairs = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in given.items())
    return [part for pair in pairs for part in ("--param", pair)]


def _begin(served: Served, *parameters: str, name: str = "answer-archive/bulk") -> str:
    """Start a run of a deployment and return its id."""
    return served.begin(name, *parameters)


def _wait(served: Served, run: str, states: set[str]) -> str:
    def state() -> str:
        return str(served.ask(f"flow_runs/{run}")["state"]["type"])

    _until(lambda: state() in states, lambda: f"the flow run is {state()}, not one of {states}")
    return state()


def _until(true, otherwise):
    until = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < until, otherwise()
        time.sleep(0.5)


def _status(served: Served, path: str, body: object = None, **headers: str) -> int:
    """Return the status that a request without anything but these headers gets."""
    try:
        served.request(path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    except urllib.error.HTTPError as error:
        assert error.headers.get("Access-Control-Allow-Origin", "http://127.0.0.1") != "http://evil.example"
        return error.code
    return 200


def test_only_who_knows_the_token_is_answered(served):
    knows = {"Authorization": "Basic " + base64.b64encode(served.auth.encode()).decode()}
    deployment = served.ask("deployments/name/answer-archive/bulk")["id"]
    start = f"deployments/{deployment}/create_flow_run"
    assert _status(served, "deployments/name/answer-archive/bulk") == 401
    assert _status(served, "csrf-token?client=me") == 401
    assert _status(served, start, {}) in (401, 403)
    assert _status(served, start, {}, **knows) == 403, "a form of another page has no CSRF token"
    assert _status(served, "health", Host="evil.example") == 400, "a name that an attacker has resolve to this machine"
    assert _status(served, "deployments/name/answer-archive/bulk", **knows, Host="evil.example") == 400
    assert _status(served, "deployments/name/answer-archive/bulk", **knows) == 200
    request = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    assert _allowed_origin(served, **request) is None
    own = served.api.removesuffix("/api")
    assert _allowed_origin(served, **{**request, "Origin": own}) == own


def _allowed_origin(served: Served, **headers: str) -> str | None:
    import urllib.request

    request = urllib.request.Request(f"{served.api}/deployments/filter", headers=headers, method="OPTIONS")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.headers.get("Access-Control-Allow-Origin")
    except urllib.error.HTTPError as error:
        return error.headers.get("Access-Control-Allow-Origin")


def test_the_token_is_the_users_alone(served):
    file = next((served.log.parent / "prefect").rglob("auth"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    token = served.auth.partition(":")[2]
    assert len(token) > 30 and token not in served.log.read_text()
    lines = [" ".join(process.cmdline()) for process in tree(served.process.pid)]
    assert len(lines) > 2 and not any(token in line for line in lines), "every user sees command lines"
    shown = json.dumps(served.ask("deployments/filter", {})) + json.dumps(served.ask("admin/settings"))
    assert token not in shown


def test_a_caller_cannot_set_what_is_the_operators(served, archive):
    given = _parameters("mine", archive, sets=["engine={trust_remote_code=true, model='evil/model'}"])
    run = _begin(served, *given)
    assert _wait(served, run, ENDED) == "FAILED"
    told = served.ask(f"flow_runs/{run}")["state"]["message"]
    assert "sets: engine.trust_remote_code is not for a flow's parameters" in told
    assert "mine" not in corpora(Store(served.store))


def test_the_page_works_on_its_own_port(served, browser):  # noqa: F811
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    asked = []
    page.on("response", lambda answer: asked.append((answer.url, answer.status)))
    page.on("requestfailed", lambda request: asked.append((request.url, 0)))
    page.goto(served.api.removesuffix("api"))
    page.fill("input[type=password]", served.auth, timeout=SECONDS * 1000)
    page.keyboard.press("Enter")
    page.get_by_text("Deployments", exact=True).wait_for(timeout=SECONDS * 1000)
    page.goto(served.api.removesuffix("api") + "deployments")  # a click may come before the login's own redirect
    for name in sorted(DEPLOYMENTS):
        page.locator("a.deployment-list__name", has_text=name).wait_for(timeout=SECONDS * 1000)
    page.screenshot(path=str(served.log.with_name("page.png")))
    page.close()
    calls = [(url, status) for url, status in asked if "/api/" in url and "images" not in url]
    assert calls and all(url.startswith(served.api) for url, _ in calls), calls
    assert {status for _, status in calls[-5:]} == {200}, calls[-5:]


def test_a_page_of_another_origin_starts_nothing_and_reads_nothing(served, browser):  # noqa: F811
    deployment = served.ask("deployments/name/answer-archive/bulk")["id"]
    with hostile_page(browser) as page:
        victim = page.context.new_page()  # the same person is logged in, in another tab
        victim.goto(served.api.removesuffix("api"))
        victim.fill("input[type=password]", served.auth, timeout=SECONDS * 1000)
        victim.keyboard.press("Enter")
        victim.get_by_text("Deployments", exact=True).wait_for(timeout=SECONDS * 1000)
        posted: list[int] = []
        page.on("response", lambda answer: posted.append(answer.status) if answer.request.method == "POST" else None)
        told = attack(page, served.api, f"deployments/{deployment}/create_flow_run")
        assert told.pop("simple post") == "opaque", "it was sent, and the page may not see what came of it"
        forms = [name for name in list(told) if name.startswith("form ") and told.pop(name) == "sent"]
        assert set(told.values()) == {"refused"} and (len(told), len(forms)) == (10, 3), told
        assert len(posted) >= 4 and set(posted) <= {401, 403}, posted
        port = served.api.split(":")[2].removesuffix("/api")
        answer = page.goto(f"http://evil.example:{port}/api/health")  # a name of theirs that resolves to this machine
        assert answer is not None and answer.status == 400
    runs = served.ask("flow_runs/filter", {})
    assert not [run for run in runs if "stolen" in json.dumps(run["parameters"])]
    assert "stolen" not in corpora(Store(served.store))


def test_nights_are_scheduled(served):
    """By the server's own services, which a version of a package below it may break without a word."""
    wanted = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}

    def scheduled() -> set[str]:
        named = {deployment["id"]: deployment["name"] for deployment in served.ask("deployments/filter", {})}
        return {named[run["deployment_id"]] for run in served.ask("flow_runs/filter", wanted)}

    every = {"nightly", "optimize", "reap", "scores", "watch"}
    _until(lambda: scheduled() >= every, lambda: f"the server has made runs of {scheduled()} only")
    assert scheduled() >= every


def test_a_bulk_run_answers_and_tells(served, archive):
    listed = served.prefect("deployment", "ls")
    assert "digest-corpus/nightly" in listed and "answer-archive/bulk" in listed
    assert served.run("answer-archive/bulk", *_parameters("c", archive)) == "COMPLETED"
    wanted = {"filter": {"event": {"name": ["memagent.archive.answered"]}}}
    _until(lambda: served.ask("events/filter", wanted)["events"], lambda: "the event of the run has not come")
    (event,) = served.ask("events/filter", wanted)["events"]
    assert event["resource"]["prefect.resource.id"] == "memagent.corpus.c"
    assert event["payload"]["readings"]["read_now"] == event["payload"]["readings"]["found"] == 4
    answers = Table(Store(served.store), "answers").read("c")
    assert set(answers["run_id"].to_pylist()) == {event["payload"]["run_id"]} and answers.num_rows == 4


@pytest.mark.parametrize("engines", [1, 2], ids=["this process", "Ray"])
def test_cancelling_ends_the_work_in_process(served, archive, engines):
    ingest(Corpus(Store(served.store), "c"), [str(archive)], load_config(store=served.store), f"for-harvest-{engines}")
    before = _planned(served)
    pool = [f"pool.max_size={engines}", "pool.cpus=0.4"]
    run = _begin(served, *_parameters(f"slow{engines}", archive, sets=["engine.scripted_delay=600", *pool]))
    _until(lambda: _planned(served) - before, lambda: "it has not begun to read")
    other = _begin(served, "--param", "corpus=c", name="harvest-qa/harvest")
    late = lambda: served.ask(f"flow_runs/{other}")["state"]["name"]  # noqa: E731  (as the server calls what waits)
    _until(lambda: late() == "Late", lambda: f"two flows work at once: it is {late()}")
    if engines > 1:
        _until(lambda: _rays(served), lambda: "Ray has not started")
    served.prefect("flow-run", "cancel", run)
    assert _wait(served, run, ENDED) == "CANCELLED"
    times = {state["type"]: state["timestamp"] for state in served.ask(f"flow_run_states/?flow_run_id={run}")}
    began, ended = (datetime.fromisoformat(times[name]) for name in ("CANCELLING", "CANCELLED"))
    # Prefect sees it within ten seconds, and kills what has not ended by itself thirty seconds later.
    assert ended - began < timedelta(seconds=30), f"it was killed after {ended - began}"
    _until(lambda: not _rays(served), lambda: f"Ray outlives its flow run: {_rays(served)}")
    assert _wait(served, other, {"COMPLETED", "FAILED", "CRASHED"}) == "COMPLETED", "it waits, and is not lost"
    # What was read before is kept, and the next run goes on.
    assert served.run("answer-archive/bulk", *_parameters(f"slow{engines}", archive)) == "COMPLETED"
    assert Table(Store(served.store), "answers").read(f"slow{engines}").num_rows == 4


def test_cancelling_the_night_stops_the_ray_job_of_a_corpus(distant, archive, cluster):
    remember(Corpus(Store(distant.store), "far"), sources=[str(archive)], questions=[ask(QUESTION)])
    before = _planned(distant)
    run = _begin(distant, name="digest-corpus/nightly")
    assert _cancel_while_it_reads(distant, run, before) == "CANCELLED"
    _jobs_are(cluster, run, ["STOPPED"])
    (below,) = distant.ask("flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    assert _wait(distant, below["id"], ENDED) in ("CANCELLED", "CRASHED")


def test_cancelling_a_bulk_run_stops_its_ray_job(distant, archive, cluster):
    before = _planned(distant)
    run = _begin(distant, *_parameters("distant", archive))
    assert _cancel_while_it_reads(distant, run, before) == "CANCELLED"
    _jobs_are(cluster, run, ["STOPPED", "SUCCEEDED"])  # documents come in by a job of their own


def _planned(served: Served) -> set[str]:
    """Return the runs that have a plan: what comes next is that they read."""
    return {path for path in Store(served.store).list("runs", suffix=".parquet") if "/plan/" in path}


def _jobs_are(cluster: str, run: str, awaited: list[str]) -> None:
    client = _jobs_client(cluster)

    def states() -> list[str]:
        return sorted(str(job.status) for job in client.list_jobs() if run in str(job.submission_id))

    _until(lambda: states() == awaited, lambda: f"the jobs are {states()}, not {awaited}")


def _cancel_while_it_reads(served: Served, run: str, before: set[str]) -> str:
    """Cancel a flow run once its job reads; return its last state."""

    def state() -> dict[str, str]:
        return dict(served.ask(f"flow_runs/{run}")["state"])

    _until(
        lambda: _planned(served) - before or state()["type"] in ENDED, lambda: f"it has not begun to read: {state()}"
    )
    assert _planned(served) - before, state()
    served.prefect("flow-run", "cancel", run)
    return _wait(served, run, ENDED)


def _rays(served: Served) -> list[str]:
    """Return Ray's processes below `memagent up`; a driver's death may make them orphans, so by their store."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        if "raylet" in line and (process.info["environ"] or {}).get("PREFECT_API_URL") == served.api:
            found.append(line[:60])
    return found


@pytest.fixture
def unwatched(served: Served) -> Served:
    """A `memagent up` whose own runs of the watch do not come between: a night is told of once."""
    watch = served.ask("deployments/name/watch-schedule/watch")["id"]
    served.ask(f"deployments/{watch}/pause_deployment", {})
    under_way = {"flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}}
    _until(
        lambda: watch not in {run["deployment_id"] for run in served.ask("flow_runs/filter", under_way)},
        lambda: "a run of the watch does not end",
    )
    return served


def test_a_night_that_was_broken_off_is_told_to_the_block_that_is_named(unwatched, archive):
    served = unwatched
    corpus = Corpus(Store(served.store), "watched")
    remember(corpus, questions=[ask(QUESTION)])
    begin_run(corpus, "killed", "digest", {}, ["w"])  # and no process has it
    with webhook() as (address, told):
        served.python(BLOCK, address)
        named = json.dumps(["schedule.notify=custom-webhook/nights"])
        run = _begin(served, "--param", f"sets={named}", name="watch-schedule/watch")
        assert _wait(served, run, ENDED) == "COMPLETED"
        _until(lambda: told, lambda: "the block was not told")
    assert "watched" in told[0]["body"] and "half-answered" in told[0]["subject"]
    (automation,) = [each for each in served.ask("automations/filter", {}) if each["name"].startswith("memagent: ")]
    assert set(automation["trigger"]["expect"]) == {
        f"memagent.quality.schedule.{problem}" for problem in ("late", "failed", "half-answered", "withheld")
    }
    served.python(OLDER)
    again = _begin(served, "--param", f"sets={named}", name="watch-schedule/watch")
    assert _wait(served, again, ENDED) == "COMPLETED"
    (same,) = [each for each in served.ask("automations/filter", {}) if each["name"].startswith("memagent: ")]
    assert same["id"] == automation["id"] and len(told) == 1, "each night is told of once"
    assert set(same["trigger"]["expect"]) == set(automation["trigger"]["expect"]), "one of an older version is renewed"
    nowhere = json.dumps(["schedule.notify=custom-webhook/nowhere"])
    lost = _begin(served, "--param", f"sets={nowhere}", name="watch-schedule/watch")
    assert _wait(served, lost, ENDED) == "FAILED"
    assert "no block 'custom-webhook/nowhere'" in served.ask(f"flow_runs/{lost}")["state"]["message"]


def test_a_night_that_was_broken_off_is_told_by_mail(unwatched):
    """By the block for Slack, which hands on to Apprise whatever is no address of Slack's."""
    served = unwatched
    corpus = Corpus(Store(served.store), "mailed")
    remember(corpus, questions=[ask(QUESTION)])
    begin_run(corpus, "killed-too", "digest", {}, ["w"])
    with mailbox() as (port, mails):
        address = f"mailto://127.0.0.1:{port}?from=memagent@example.org&to=anna@example.org&mode=insecure"
        served.python(MAIL_BLOCK, address)
        named = json.dumps(["schedule.notify=slack-webhook/mail"])
        run = _begin(served, "--param", f"sets={named}", name="watch-schedule/watch")
        assert _wait(served, run, ENDED) == "COMPLETED"
        _until(lambda: mails, lambda: "no mail has come")
    assert mails[0]["to"] == "anna@example.org" and "half-answered" in mails[0]["subject"]
    assert "mailed" in mails[0].get_body(("plain", "html")).get_content()
