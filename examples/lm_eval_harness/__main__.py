"""Samples of `memagent evaluate --write FOLDER` as tasks of lm-evaluation-harness (EleutherAI), beside the samples.

python -m examples.lm_eval_harness FOLDER [GROUP]

There they can be scored against any model that the harness can call.
"""

import json
import sys
from pathlib import Path

_CODE = "lm_eval_task"
"""Module that is copied into the folder: tasks name its functions."""
_IMPORT = "from memagent.evaluation.metrics import MATCHES, normalise\n"
"""Line of it for which the copy has that module's text."""
_PROMPT = "<document>{{text}}</document>\n{{question}}"
"""By the marks `memagent serve` tells the document from the question (`pipelines.web.api.protocol`)."""
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
  max_gen_toks: 512
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


def write_tasks(folder: Path, group: str = "memagent") -> list[str]:
    """Write a task for each kind and length of the samples in a folder, and a group of them all; return their names.

    A task is named ``GROUP_KIND_LENGTH`` (``memagent_niah_single_1_8000``). Files of the same names are overwritten.

    Raises SystemExit: the folder has no samples.
    """
    samples = sorted(folder.glob("*/data/*/validation.jsonl"), key=lambda path: (int(path.parts[-4]), path.parts[-2]))
    if not samples:
        raise SystemExit(f"no samples in {folder}: memagent evaluate --suite needles --lengths 8k --write {folder}")
    names = []
    for data in samples:
        name = f"{group}_{data.parts[-2]}_{data.parts[-4]}"
        file = json.dumps(str(data.relative_to(folder)))
        task = _TASK.format(task=name, code=_CODE, file=file, prompt=json.dumps(_PROMPT))
        (folder / f"{name}.yaml").write_text(task, encoding="utf-8")
        names.append(name)
    lines = "\n".join(f"  - {name}" for name in names)
    (folder / f"{group}.yaml").write_text(_GROUP.format(group=group, tasks=lines), encoding="utf-8")
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    metrics = (root / "memagent" / "evaluation" / "metrics.py").read_text(encoding="utf-8")
    code = (here / f"{_CODE}.py").read_text(encoding="utf-8").replace(_IMPORT, metrics)
    (folder / f"{_CODE}.py").write_text(code, encoding="utf-8")
    return names


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        raise SystemExit("python -m examples.lm_eval_harness FOLDER [GROUP]")
    print("\n".join(write_tasks(Path(sys.argv[1]), *sys.argv[2:])))
