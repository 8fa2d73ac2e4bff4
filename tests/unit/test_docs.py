"""The documentation says what is there: links, files, commands, settings."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from infra.sources.dataset_files import DatasetFile
from memagent.rl.config import load_recipe
from memagent.rl.reward import check_rewards
from pipelines.cli.main import app
from tests.support.pages import PAGES, ROOT, anchors, blocks, commands, inline_code, links

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "results"]
"""The pages that say what is there now. The others keep what was there: changes, and commands at a record's commit."""
NAMED = re.compile(r"(?:memagent|infra|pipelines|tests|benchmarks|docs)/[\w./*-]*[\w/*]")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page):
    for link in links(page):
        if "://" in link:
            assert link.startswith("https://"), link
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists() and file.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("page", PRESENT, ids=named)
def test_every_file_that_is_named_exists(page):
    for code in inline_code(page):
        if match := NAMED.fullmatch(code.partition(":")[0]):
            assert list(ROOT.glob(match[0].rstrip("/"))), code


def test_every_page_has_its_place_in_the_site():
    navigation = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = "api.md" if page.parent.name == "site" else str(page.relative_to(ROOT / "docs"))
        assert re.search(rf"[ :-] {re.escape(name)}$", navigation, re.MULTILINE), name


@pytest.mark.parametrize("page", PRESENT, ids=named)
def test_every_command_and_option_exists(page):
    for line in commands(page):
        try:
            words = shlex.split(line)
        except ValueError:
            raise AssertionError(f"memagent {line}: an open quote") from None
        command = get_command(app)
        while words:
            word = words.pop(0)
            options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
            if word.startswith("-"):
                name, equals, _ = word.partition("=")
                assert name in options or name == "--help", f"memagent {line}: {name}"
                if name in options and not equals and not options[name].is_flag and words:
                    words.pop(0)
            elif hasattr(command, "commands") and not word.isupper():
                assert word in command.commands, f"memagent {line}: {word}"
                command = command.commands[word]


def test_the_commands_of_a_page_are_found():
    found = list(commands(ROOT / "README.md"))
    assert len(found) > 20
    assert any("tensor_parallel=2" in line and "pool.max_size=4" in line for line in found)


def test_settings_and_commands_are_listed_as_they_are(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"), run_name="__main__")
    assert not end.value.code


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_why_and_what_would_change_it(page):
    text = page.read_text()
    headings = ["Context", "Decision", "Consequences", "What would change it"]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == headings
    assert text.startswith(f"# {page.name[:4]}: ") and len(text.splitlines()) <= 45
    index = (page.parent / "README.md").read_text()
    assert f"[{page.name[:4]}]({page.name})" in index


def rooms() -> dict[str, set[str]]:
    """The rooms of docs/where-to-change.md, each with the files that its row names."""
    page = (ROOT / "docs" / "where-to-change.md").read_text()
    section = page.split("## Rooms and their files")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)/` \| (.+) \|$", section, re.MULTILINE)
    return {folder: set(re.findall(r"`(\w+)`", files)) for folder, files in rows}


@pytest.mark.parametrize("folder", ["memagent", "infra", "infra/cluster", "infra/learner"])
def test_the_page_of_places_names_every_file_of_the_house(folder):
    named = rooms()
    files = {path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("__")}
    assert files and not files - named[folder]
    assert {str(path.parent.relative_to(ROOT)) for path in (ROOT / folder).glob("*/*.py")} <= set(named)


def test_every_file_that_a_room_names_exists():
    for folder, files in rooms().items():
        assert not files - {path.stem for path in (ROOT / folder).glob("*.py")}, folder


def test_data_recipe_and_reward_of_ones_own_are_taken_as_they_stand(tmp_path, monkeypatch):
    page = ROOT / "docs" / "training.md"
    (records,), (recipe,), (reward,) = (blocks(page, language) for language in ("json", "toml", "python"))
    (tmp_path / "train.jsonl").write_text(records)
    assert [row.answers for row in DatasetFile(str(tmp_path / "train.jsonl")).rows] == [("the lessor",), ("",)]
    (tmp_path / "own.toml").write_text(recipe)
    assert load_recipe(str(tmp_path / "own.toml")).stage.export_every == 50
    (tmp_path / "own_rewards.py").write_text(reward)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"own_rewards:score": 1.0}
    assert all(f'"{name}"' in page.read_text() for name in own)
    check_rewards(own)
    del sys.modules["own_rewards"]  # another test has one of this name
