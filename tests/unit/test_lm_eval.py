"""Suites as tasks of lm-evaluation-harness: their files, and the scores of the code that goes with them."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.lm_eval_harness.__main__ import write_tasks
from examples.lm_eval_harness.lm_eval_task import process_results, score
from memagent.evaluation.grading import judge
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import Sample
from pipelines.stages.make_samples import write_files
from pipelines.web.api.protocol import ChatRequest, text_and_question

WORDS = st.lists(st.sampled_from(["the", "A", "1002", "Otter.", "no", "found", "not", "", "山田。"]), max_size=4).map(
    " ".join
)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3), st.sampled_from(["all", "part", "f1", "exact"]))
def test_scores_are_those_of_the_products_own_evaluation(answer, gold, match):
    sample = Sample("s", "t", 0, pieces=lambda: iter(()), question="q", answers=tuple(gold), match=match)
    assert score(answer, gold, match) == pytest.approx(judge(sample, answer).score)


def test_not_found_is_the_answer_where_the_text_does_not_say():
    silent, said = {"answers": [""], "match": "all"}, {"answers": ["7", "8"], "match": "all"}
    assert process_results(silent, ["Not found."]) == {"score": 1.0} and process_results(silent, ["7"]) == {
        "score": 0.0
    }
    assert process_results(said, ["not found"]) == {"score": 0.0} and process_results(said, ["it is 7"]) == {
        "score": 0.5
    }
    with pytest.raises(ValueError, match="no way of matching"):
        score("7", ["7"], "contract")


def test_a_folder_has_a_task_for_each_kind_and_length_and_a_group(tmp_path, tokenizer):
    (tmp_path / "hay.txt").write_text("The committee met in spring. Members asked for a list of dates.\n\n" * 40)
    suite = Suite("needles", kinds=("niah_single_1", "niah_multivalue"), lengths=(600, 900), n=2)
    folder = tmp_path / "tasks"
    write_files(suite, (str(tmp_path / "hay.txt"),), tokenizer, folder)
    names = write_tasks(folder, "memagent_needles")
    kinds = ("niah_multivalue", "niah_single_1")
    assert names == [f"memagent_needles_{kind}_{length}" for length in (600, 900) for kind in kinds]
    group = (folder / "memagent_needles.yaml").read_text()
    assert re.findall(r"^  - (memagent_\w+)$", group, re.MULTILINE) == names
    copied = (folder / "lm_eval_task.py").read_text(encoding="utf-8")
    assert copied.startswith('"""Samples and scores') and "from memagent" not in copied
    alone: dict = {"__name__": "lm_eval_task"}
    exec(compile(copied, "lm_eval_task.py", "exec"), alone)
    assert alone["process_results"]({"answers": ["Café"], "match": "exact"}, ["the CAFÉ."]) == {"score": 1.0}
    task = (folder / f"{names[0]}.yaml").read_text()
    rows = _rows(folder, task)
    assert len(rows) == 2 and all(row["answers"][0] in row["text"] for row in rows)
    prompt = json.loads(re.search(r"^doc_to_text: (.*)$", task, re.MULTILINE)[1])
    said = prompt.replace("{{text}}", rows[0]["text"]).replace("{{question}}", rows[0]["question"])
    request = ChatRequest.model_validate({"model": "memagent", "messages": [{"role": "user", "content": said}]})
    asked = text_and_question(request)
    assert (asked.text, asked.question) == (rows[0]["text"], rows[0]["question"]), "as memagent serve takes it"


def _rows(folder: Path, task: str) -> list[dict]:
    """Read the samples that a task names, as its own code does where `datasets` is installed."""
    file = json.loads(re.search(r"^  file: (.*)$", task, re.MULTILINE)[1])
    lines = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return [
        {"text": row["input"][: row["text_end"]], "question": row["question"], "answers": row["outputs"]}
        for row in lines
    ]


def test_a_folder_without_samples_says_what_writes_them(tmp_path):
    with pytest.raises(SystemExit, match=r"memagent evaluate .* --write"):
        write_tasks(tmp_path)
