"""What a new process of the package loads, prints, and offers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import memagent
from tests.support.hostile import pdf
from tests.support.pages import HERE, ROOT

HEAVY = ("ray", "torch", "vllm", "deepspeed", "prefect", "pyarrow", "deltalake", "transformers", "matplotlib")
_LOADED = f"""
import json, sys
import memagent
said = [[name for name in {HEAVY} if name in sys.modules]]
import pipelines.cli.live
said.append([name for name in {HEAVY} if name in sys.modules])
print(json.dumps(said))
"""


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=env)


def test_nothing_heavy_is_loaded_before_it_is_needed():
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, cwd=ROOT, env=HERE)
    package, display = json.loads(done.stdout)
    assert package == [], done.stderr
    assert display == [], done.stderr


def test_both_ways_to_start_say_the_version():
    for start in (("-m", "memagent"), (str(Path(sys.executable).with_name("memagent")),)):
        done = run(*start, "--version")
        assert (done.returncode, done.stdout) == (0, f"memagent {memagent.__version__}\n"), done.stderr


def test_the_package_can_be_run_as_the_command():
    done = run("-m", "memagent", "answers", "no such corpus!")
    assert done.returncode == 2 and done.stderr.startswith("memagent: ")
    usage = run("-m", "memagent", "--help").stdout
    assert "Usage: python -m memagent" in usage and "evaluate" in usage


def test_a_command_that_is_terminated_stops_and_goes_on_when_it_is_repeated(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("The access code of otter-gate is 4711.")
    command = ["ask", str(tmp_path / "docs"), "-q", "What is the code?", "--engine", "scripted"]
    command += ["--model", str(ROOT / "memagent" / "nano" / "sft"), "--store", str(tmp_path / "store")]
    slow = [sys.executable, "-m", "memagent", *command, "--set", "engine.scripted_delay=60"]
    with subprocess.Popen(slow, stderr=subprocess.PIPE, text=True, cwd=ROOT) as asking:
        assert asking.stderr is not None
        said = [next(line for line in asking.stderr if "read:" in line)]
        asking.send_signal(signal.SIGTERM)
        said += asking.stderr
    assert asking.returncode == 128 + signal.SIGTERM
    assert said[-1] == "memagent: stopped; run the same command to continue\n" and "Traceback" not in "".join(said)
    done = run("-m", "memagent", *command)
    assert done.returncode == 0, done.stderr


def test_a_watch_goes_on_without_documents_and_asks_when_there_are_some(tmp_path):
    folder, good = tmp_path / "docs", pdf("The access code of heron-gate is 7312.")
    folder.mkdir()
    command = ["ask", str(folder), "-q", "What is the code?", "--watch", "--engine", "scripted"]
    command += ["--model", str(ROOT / "memagent" / "nano" / "sft"), "--store", str(tmp_path / "store")]
    call = [sys.executable, "-m", "memagent", *command]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as watching:
        assert watching.stdout is not None
        said = iter(watching.stdout)
        next(line for line in said if "Ctrl-C ends it" in line)
        (folder / "a.pdf").write_bytes(good[:200])
        next(line for line in said if "sources that could not be read: 1" in line and "waiting for files" in line)
        (folder / "a.pdf").write_bytes(good)
        next(line for line in said if line.startswith("a.pdf\t"))
        (folder / "a.pdf").write_bytes(good[:100])
        next(line for line in said if "without an answer: " in line)
        (folder / "a.pdf").rename(folder / "c.pdf")
        next(line for line in said if "their files are gone: 1" in line and "waiting for files" in line)
        (folder / "b.txt").write_text("The access code of otter-gate is 4711.")
        next(line for line in said if line.startswith("b.txt\t"))
        watching.terminate()
        assert "Traceback" not in "".join(said)
    assert watching.returncode in (0, 128 + signal.SIGTERM)  # it waited for files, or finished the run


def test_a_shell_can_complete_commands():
    words = {"_MEMAGENT_COMPLETE": "complete_bash", "COMP_WORDS": "memagent eval", "COMP_CWORD": "1"}
    done = run("-c", "from pipelines.cli.main import app; app(prog_name='memagent')", **words)
    assert done.stdout.split() == ["evaluate"]


def test_the_seed_of_hashes_decides_nothing():
    code = (
        "import hashlib; from memagent.evaluation.ruler import *; from memagent.reading.tokens import load_tokenizer\n"
        "t = load_tokenizer('memagent/nano/sft')\n"
        "for k in ('vt', 'cwe', 'fwe', 'niah_multikey_2', 'qa_2'):\n"
        "    q = [Asked('Who?', ('Ann',), (('A', 'It was Ann.'),))]; p = [(str(i), f'Text {i}.') for i in range(50)]\n"
        "    s = next(make_samples(DraftRequest(find_kind(k), 4096, t, questions=q, paragraphs=p), 1, seed=1))\n"
        "    print(s.sample_id, s.question, s.depth, hashlib.sha256(s.text().encode()).hexdigest())"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1 and len(shown.pop().splitlines()) == 5
