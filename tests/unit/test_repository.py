"""What comes with the code: licence, types, version, hooks, the ways to start it."""

import tomllib
from pathlib import Path

import yaml

import memagent

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_licence_is_there_in_full():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]


def test_the_packages_say_that_they_are_typed():
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]
    for package in ("memagent", "infra", "pipelines"):
        assert (ROOT / package / "py.typed").is_file()


def test_there_is_one_version():
    assert PROJECT["project"]["version"] == memagent.__version__


def test_hooks_run_the_projects_own_tools():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"  # nothing is fetched
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert set(hooks) == {"ruff-check", "ruff-format", "mypy"}
    for hook in hooks.values():
        python, _, module = hook["entry"].split()[:3]
        assert (hook["language"], python) == ("system", ".venv/bin/python")
        assert any(need.startswith(module) for need in PROJECT["project"]["optional-dependencies"]["dev"])
