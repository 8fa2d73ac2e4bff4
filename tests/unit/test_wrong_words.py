"""Wrong words on the command line: what was given, what is possible, and the nearest right one."""

import pytest

from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.errors import ConfigError, UsageError
from memagent.evaluation.suites import Suite
from pipelines.flows.serve import ServingPlan


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
