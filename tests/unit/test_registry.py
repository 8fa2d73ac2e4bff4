"""Registries: what is built in, what other packages bring, and what neither has."""

from importlib.metadata import EntryPoint

import pytest

import memagent.registry
from memagent.config import METHODS
from memagent.errors import ConfigError
from memagent.evaluation.loaders import FORMATS
from memagent.evaluation.ruler.kinds import FAMILIES, KINDS
from memagent.reading.engine import ENGINES
from memagent.registry import Registry
from memagent.rl.dataset import DATASETS
from memagent.rl.reward import FUNCTIONS


@pytest.fixture
def brought(monkeypatch):
    """Entry points of the group ``some.group``; each look through the installed packages is counted."""
    points, looks = [], []

    def entry_points(*, group):
        looks.append(group)
        return [point for point in points if point.group == group]

    monkeypatch.setattr(memagent.registry, "entry_points", entry_points)
    return points, looks


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "some.group")


def test_what_is_built_in_needs_no_other_package(brought):
    points, looks = brought
    points.append(point("join", "nowhere:nothing"))
    known = Registry("some.group", "thing", {"join": "posixpath:join", "here": len})
    assert known.find("join")("a", "b") == "a/b" and known["here"] is len and known.origin("here") == ""
    assert looks == [], "and no package takes the place of what is built in"
    assert list(known) == ["join", "here"] and len(known) == 2


def test_what_a_package_brings_is_imported_when_it_is_asked_for(brought):
    points, looks = brought
    points += [point("root", "math:sqrt"), point("gone", "nowhere:nothing"), point("pi", "math:pi")]
    known = Registry("some.group", "thing", {"here": len})
    assert "root" in known and list(known) == ["here", "gone", "pi", "root"]
    assert known.find("root")(9) == 3 and known.origin("root") == "a package without a name (math:sqrt)"
    assert looks == ["some.group"], "packages are looked through once"
    with pytest.raises(ConfigError, match=r"thing 'gone' of .*nowhere:nothing.* cannot be imported: ModuleNotFound"):
        known["gone"]
    with pytest.raises(ConfigError, match=r"thing 'pi' of .* cannot be used: it is of type float"):
        known["pi"]


def test_a_name_that_nothing_has_or_two_packages_bring(brought):
    points, _ = brought
    points += [point("one", "math:sqrt"), point("one", "math:floor")]
    known = Registry("some.group", "thing", {"here": len})
    with pytest.raises(ConfigError, match=r"no thing 'x'\. There are: here, one; .* entry point group some\.group"):
        known.find("x")
    assert known.get("x") is None and known.origin("x") == ""
    with pytest.raises(ConfigError, match=r"thing 'one' is brought by .*floor.* and .*sqrt.*: uninstall one of them"):
        known.find("one")


@pytest.mark.parametrize("known", [METHODS, FUNCTIONS, FORMATS, DATASETS, FAMILIES, ENGINES], ids=lambda k: k.group)
def test_all_that_is_built_in_can_be_imported(known):
    assert all(known.find(name) is not None for name in known.built_in)


def test_kinds_name_families_that_there_are():
    assert {kind.family for kind in KINDS.values()} == set(FAMILIES.built_in)
