"""What answers is part of an answer's identity: the served name, its address and the weights behind the name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from infra.readers import ReaderSpec, resolve_policy
from memagent.config import load_config
from memagent.nano import bundled
from tests.support.model_server import entry, model_server, models


@contextmanager
def listing(*entries: dict[str, Any], status: int = 200) -> Iterator[str]:
    """Serve a model listing; gives the base URL."""
    with model_server(listing=models(*entries, status=status)) as server:
        yield server.url


def policy(url: str, served: str | None, model: str = "nano") -> Any:
    sets = ["engine.kind=openai", f"engine.base_url={url}", f"engine.model={model}"]
    sets += [f"engine.served_model={served}"] if served else []
    return resolve_policy(load_config(sets=sets).engine)


def test_a_served_model_is_not_the_folder_that_gives_the_tokenizer() -> None:
    with listing(entry("gpt-4o-mini"), entry("other")) as url:
        mini, other = policy(url, "gpt-4o-mini"), policy(url, "other")
        local = resolve_policy(load_config().engine)
    assert mini.name.startswith("gpt-4o-mini-") and other.name.startswith("other-")
    assert len({mini.policy_id, other.policy_id, local.policy_id}) == 3
    assert len({mini.name, other.name, local.name}) == 3, "another name is asked anew"
    assert mini.path == str(bundled().resolve()), "the tokenizer's"
    assert mini.defaults == local.defaults


def test_other_weights_behind_a_name_are_another_version_of_the_policy() -> None:
    with listing(entry("reader", root="/models/first")) as url:
        first = policy(url, "reader")
        assert policy(url, "reader") == first
    with listing(entry("reader", root="/models/second")) as elsewhere:
        second = policy(elsewhere, "reader")
    assert first.name != second.name, "two addresses are two policies"
    with listing(entry("reader", root="/models/first", created=2)) as url, pytest.MonkeyPatch.context() as patch:
        one = policy(url, "reader")
        patch.setattr("infra.engines.openai.listed_weights", lambda config, served: '{"root": "/models/second"}')
        two = policy(url, "reader")
    assert one.name == two.name and one.policy_id != two.policy_id


@pytest.mark.parametrize("status", [401, 500, 200])
def test_a_server_that_lists_nothing_leaves_name_and_address(status: int) -> None:
    with listing(status=status) as url:
        silent = policy(url, "reader")
    gone = policy(url, "reader")
    assert silent == gone


def test_the_reader_of_a_served_model_has_the_folders_tokenizer() -> None:
    with listing(entry("reader")) as url:
        sets = ["engine.kind=openai", f"engine.base_url={url}", "engine.served_model=reader"]
        reader = ReaderSpec(load_config(sets=sets))
    assert reader.tokenizer.encode("word")
    assert reader.folder == str(bundled().resolve())
