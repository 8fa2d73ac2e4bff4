"""Wrong words on the command line: what was given, what is possible, and the nearest right one."""

import pytest

from infra.readers import ReaderSpec
from infra.store.location import Store
from memagent.config import load_config
from memagent.errors import ConfigError, UsageError
from memagent.evaluation.suites import Suite
from pipelines.flows.serve import ServingPlan
from pipelines.target import find_target
from tests.support.commands import run_here


def plan(**options):
    given = {"cron": "0 2 * * *", "scores_cron": "@daily", "optimize_cron": "*/5 4 1-7 * MON,TUE", "timezone": "UTC"}
    return ServingPlan(**{**given, "recipe": "nano-cpu", "retrain_cron": None, "enough": 1, **options})


def test_schedules_that_can_be_are_taken():
    plan().check_schedules()
    plan(timezone="Europe/Berlin", retrain_cron="0 3 * * 0").check_schedules()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timezone": "Mars/Phobos"}, "--timezone 'Mars/Phobos'"),
        ({"timezone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
        ({"cron": ""}, "--cron '': write five fields"),
        ({"cron": "at night"}, "--cron 'at night': write five fields"),
        ({"retrain_cron": "0 2 * *"}, "--retrain-cron '0 2 [*] [*]'"),
    ],
)
def test_a_schedule_that_cannot_be_is_said_before_a_server_starts(given, says):
    with pytest.raises(UsageError, match=says):
        plan(**given).check_schedules()


def test_a_served_model_without_a_tokenizer_says_which_key_to_set():
    config = load_config(engine__kind="openai", engine__model="gpt-4o-mini", engine__base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=r"'gpt-4o-mini' names no tokenizer.*engine.tokenizer"):
        ReaderSpec(config).tokenizer.encode("x")
    counts = load_config(
        None,
        ["engine.tokenizer=nano", "reading.template=plain", "engine.protocol=chat"],
        engine__kind="openai",
        engine__model="gpt-4o-mini",
        engine__base_url="http://127.0.0.1:9/v1",
    )
    assert ReaderSpec(counts).tokenizer.encode("Some text.")


def test_a_suite_of_files_says_which_formats_there_are():
    with pytest.raises(UsageError, match="--data FILE, of the formats ruler, memagent, longbench, hotpot, squad"):
        Suite("files").check()


LONG = "这份合同的租金是多少" * 30
"""More bytes than a file's name may have."""


def test_words_that_are_too_long_for_a_path_are_no_path(tmp_path):
    with pytest.raises(UsageError, match="corpus name"):
        find_target(Store(str(tmp_path)), LONG)
    with pytest.raises(ConfigError, match="neither a folder nor a Hugging Face name"):
        _ = ReaderSpec(load_config(store=str(tmp_path), engine__model=LONG)).policy
    _, said = run_here("ask", "nobody", LONG, "--store", str(tmp_path), status=2)
    assert said.startswith("memagent: there is no corpus")
    assert "no corpus yet" in run_here("status", "--store", str(tmp_path / LONG))[0]


@pytest.mark.parametrize("url", ["s3://b/z?x=1", "s3://b/y#f", "s3://b/a//b", "s3://b/../x", "s3://b/./q"])
def test_a_prefix_that_would_be_taken_for_another_is_refused(url):
    with pytest.raises(ConfigError, match="a prefix has no"):
        Store(url)


@pytest.mark.parametrize("name", ["x%20y", "[store]", "a\\b", "a\nb"])
def test_a_folder_that_would_be_taken_for_another_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="Delta tables cannot be in a folder"):
        Store(str(tmp_path / name)).delta_uri("documents")
