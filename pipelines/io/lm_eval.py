"""Suites as a task folder of lm-evaluation-harness (EleutherAI), to be scored there against any model it can call."""

import json
from importlib.resources import files
from pathlib import Path

from memagent.errors import UsageError
from memagent.evaluation.suites import Suite
from memagent.reading.tokens import Tokenizer
from pipelines.stages.make_samples import write_files

_CODE = "lm_eval_task"
"""Module that is copied into the folder: tasks name its functions."""
_IMPORT = "from memagent.evaluation.metrics import MATCHES, normalise\n"
"""Line of it for which the copy has that module's text."""
_PROMPT = "<document>{{text}}</document>\n{{question}}"
"""By the marks `memagent serve` tells the document from the question (`pipelines.web.api.protocol`)."""
_MOST_TOKENS = 512
_TASK = """\
task: {task}
custom_dataset: !function {code}.load
dataset_kwargs:
  file: {file}
output_type: generate_until
test_split: test
doc_to_text: {prompt}
doc_to_target: "{{{{answers}}}}"
process_results: !function {code}.process_results
metric_list:
  - metric: score
    aggregation: mean
    higher_is_better: true
generation_kwargs:
  do_sample: false
  temperature: 0.0
  max_gen_toks: {tokens}
  until: []
metadata:
  version: 1.0
"""
_GROUP = """\
group: {group}
task:
{tasks}
aggregate_metric_list:
  - metric: score
    aggregation: mean
    weight_by_size: true
metadata:
  version: 1.0
"""


def write_lm_eval(suite: Suite, texts: tuple[str, ...], tokenizer: Tokenizer, folder: Path) -> list[tuple[Path, int]]:
    """Write a made suite (``needles``, ``ruler``, or a control of them) as a folder for ``lm_eval --include_path``.

    It has a task for each kind and length (``memagent_niah_single_1_8000``) and a group of them all, which is named
    after the suite (``memagent_needles``). The samples are those of ``memagent evaluate`` with the same options;
    needles are planted in the `texts`, files and folders. Files of the same names are overwritten.

    Returns each task's file, with its number of samples.

    Raises UsageError: the suite is not made, or cannot be.
    """
    if not suite.is_made:
        raise UsageError(f"--lm-eval is for suites that are made (needles, ruler): {suite.name} is read from files")
    group = f"memagent_{suite.name}" + (f"_{suite.control.replace('-', '_')}" if suite.control else "")
    written, names = [], []
    for data, count in write_files(suite, texts, tokenizer, folder / group):
        length, _, kind, _ = data.relative_to(folder / group).parts
        name = f"{group.replace(suite.name, kind, 1)}_{length}"
        task = _TASK.format(
            task=name,
            code=_CODE,
            file=json.dumps(str(data.relative_to(folder))),
            prompt=json.dumps(_PROMPT),
            tokens=_MOST_TOKENS,
        )
        path = folder / f"{name}.yaml"
        path.write_text(task, encoding="utf-8")
        written.append((path, count))
        names.append(name)
    lines = "\n".join(f"  - {name}" for name in names)
    (folder / f"{group}.yaml").write_text(_GROUP.format(group=group, tasks=lines), encoding="utf-8")
    code = (files("pipelines.io") / f"{_CODE}.py").read_text(encoding="utf-8")
    metrics = (files("memagent.evaluation") / "metrics.py").read_text(encoding="utf-8")
    (folder / f"{_CODE}.py").write_text(code.replace(_IMPORT, metrics), encoding="utf-8")
    return written
