"""The wheel: built, installed beside the packages that it needs, and used where there is no checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import memagent
from tests.support.pages import ROOT, blocks

PACKAGES = ("memagent", "infra", "pipelines")
NEEDED = (
    *("memagent/nano/rl/model.safetensors", "memagent/nano/rl/reading.json", "memagent/nano/sft/tokenizer.json"),
    *(
        "memagent/reading/templates/nano.toml",
        "memagent/evaluation/contracts.toml",
        "memagent/evaluation/needles.toml",
        "memagent/quality/question_writer.toml",
        "memagent/rl/recipes/nano-cpu.toml",
    ),
    *("pipelines/report/template.html.j2", "pipelines/report/main.js", "pipelines/report/report.css"),
    *("infra/deploy/prefect.yaml", "infra/deploy/lock/cpu.txt", "memagent/py.typed"),
)


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    # Nothing of the checkout may be on the path.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:  # a build leaves files where it builds
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--no-build-isolation", "--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that sees the wheel and, after it, the packages of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # Of a folder that is named in a .pth file no .pth file is read: the checkout's editable install stays out.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return python


def test_the_wheel_holds_all_that_is_no_code(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(NEEDED) <= names
    beside = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".sh"
    }
    assert beside <= names, sorted(beside - names)
    assert not {name for name in names if name.startswith(("tests", "docs", "benchmarks"))}


def test_the_installed_command_and_example_run_without_a_checkout(python: Path, tmp_path: Path):
    version = run(python.with_name("memagent"), "--version", cwd=tmp_path)
    assert version == f"memagent {memagent.__version__}\n"
    place = run(python, "-c", "import memagent, infra, pipelines; print(memagent.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(python.parents[1])
    (example,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "doors.txt").write_text("Visitors sign in. The access code of cedar-gate is 4471902.")
    scripted = json.dumps({"engine": {"kind": "scripted"}})
    assert run(python, "-c", example, cwd=tmp_path, MEMAGENT_CONFIG=scripted).startswith("doors.txt 4471902 ")


def test_the_installed_package_finds_its_files(python: Path, tmp_path: Path):
    code = """
from infra.models import check_folder
from memagent.nano import VERSIONS, bundled
from memagent.reading.prompts import load_template
from memagent.rl.config import load_recipe
for version in VERSIONS:
    check_folder(bundled(version))
for name in ("nano", "plain"):
    load_template(name)
for name in ("nano-cpu", "smoke", "reader-7b", "reader-14b"):
    load_recipe(name)
print("found")
"""
    assert run(python, "-c", code, cwd=tmp_path) == "found\n"
