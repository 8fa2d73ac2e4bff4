"""The closed loop on real contracts: answers, corrections, harvest, training, promotion check; then unseen contracts.

    python -m benchmarks.contract_loop --data FOLDER [--store DIR]

FOLDER holds gold.jsonl and contracts/ (CUAD). A weak reader, nano@sft asked in wordings that its training never had,
answers questions on 150 contracts. A scripted reviewer corrects it from gold, the corrections are harvested and trained
on, and the candidate goes through the promotion check, whose own questions are on other contracts. Then both read the
contracts that no training has. After that a second reviewer, who is always wrong, corrects answers on further
contracts, and what is trained on that goes through the same check. Everything runs through the commands.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.record import Row, arguments, result, write
from examples.nano.contract_places import note_places
from infra.store.location import Store
from memagent.evaluation.contract_match import right
from memagent.evaluation.contracts import CATEGORIES, REWORDED, Category, Contract, load_contracts, split
from memagent.evaluation.metrics import containment
from memagent.evaluation.stats import compare, mean
from memagent.nano import bundled
from pipelines.evaluate import run_results

BATCH, OWN, POISONED = 150, 36, 36
"""Contracts that are corrected, those of the promotion check's own questions, and those that are corrected wrongly."""
LONGEST = 50_000
"""Characters of these contracts at most; the unseen ones are of any length."""
WORDINGS = 2
"""Wordings of each question, of four; the unseen contracts are asked in all four."""
ASKED = {f"{category}/{i}": REWORDED[category][i] for category in CATEGORIES for i in range(WORDINGS)}
NEEDLES = ("kinds=niah_single_1,niah_multikey_1", "lengths=1016,4064", "n=50")
NOTE = """\
The weak reader is `nano@sft`, asked in wordings that its training never had. The texts of the corrected contracts and
of the check's own it knows from supervised training, in other wordings; the 80 unseen ones no training had. These are
asked in four wordings, of which the corrections had two. The difference is paired, its interval by contract. The second
reviewer names the title in place of every governing law, and says "not there" of every title and date; the candidate
learnt that (it was better on its own validation questions). None of that batch's contracts is for promotion, so it is
asked nothing of what it learnt. The steps were taken in several calls, beside other work, and each kept what it gave.
"""
RECIPE = """
model = {model}

[rollout]
prompts = {prompts}
group_size = {group_size}
segments = 8

[loss]
clip_high = 0.28
kl_coef = 0.02

[learner]
minibatch_prompts = {prompts}
lr = 5e-5
warmup_steps = 2
token_budget = 8192

[stage]
max_steps = {steps}
save_every = 4
validate_every = 4
validate_with = {validation}
patience = 6
"""


@dataclass(frozen=True)
class Size:
    """The size of a training."""

    steps: int
    prompts: int
    group_size: int
    validation: int


CORRECTED, WRONG = Size(8, prompts=8, group_size=8, validation=96), Size(4, prompts=4, group_size=6, validation=48)


@dataclass(frozen=True)
class Loop:
    """A folder of the loop's files, its store, and the weak reader."""

    folder: Path
    contracts: dict[str, Contract]

    @property
    def store(self) -> str:
        """The store."""
        return str(self.folder / "store")

    @property
    def weak(self) -> str:
        """The reader that the loop begins with."""
        return str(self.folder / "reader")

    def memagent(self, *argv: str, json_: bool = True) -> Any:
        """Run a command; return what it says as JSON."""
        began = time.monotonic()
        command = [sys.executable, "-m", "memagent", *argv, "--store", self.store, *(["--json"] if json_ else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ, check=False)
        if done.returncode:
            raise SystemExit(f"memagent {argv[0]}: status {done.returncode}\n{done.stdout[-2000:]}")
        print(f"{time.monotonic() - began:7.0f} s  memagent {' '.join(argv)[:150]}", flush=True)
        return json.loads(done.stdout) if json_ else None

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what a step gave when it was taken in an earlier call, or take it."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(make()), encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

    def answered(self, corpus: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Ingest some contracts and ask; return the answers."""
        folder = self.folder / corpus
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_text(self.contracts[name].text, encoding="utf-8")
        questions = self.folder / "questions.jsonl"
        lines = [json.dumps({"id": name, "question": text}) for name, text in ASKED.items()]
        questions.write_text("\n".join(lines), encoding="utf-8")
        self.memagent("ingest", corpus, str(folder))
        asked = self.memagent("ask", corpus, "--questions", str(questions), "--model", self.weak, "--no-answers")
        exported = self.folder / f"{corpus}-answers.jsonl"
        self.memagent("answers", corpus, "--run", asked["run_id"], "-o", str(exported), json_=False)
        return [json.loads(line) for line in exported.read_text(encoding="utf-8").splitlines()]

    def corrected(self, corpus: str, verdicts: list[dict[str, str]]) -> dict[str, Any]:
        """Import verdicts and harvest; return the harvest's summary."""
        file = self.folder / f"{corpus}-verdicts.jsonl"
        file.write_text("\n".join(map(json.dumps, verdicts)), encoding="utf-8")
        self.memagent("feedback", str(file), corpus)
        harvested: dict[str, Any] = self.memagent("harvest", corpus, "--model", self.weak)
        return harvested

    def trained(self, corpus: str, size: "Size", checks: Sequence[str]) -> dict[str, Any]:
        """Train on a corpus's corrections and have the candidate checked; return the training's summary."""
        recipe = self.folder / f"{corpus}.toml"
        recipe.write_text(RECIPE.format(model=json.dumps(self.weak), **asdict(size)), encoding="utf-8")
        options = [part for check in (*NEEDLES, *checks) for part in ("--check", check)]
        own = ("--promotion", str(self.own_questions()))
        data = ("--recipe", str(recipe), "--data", f"qa:{corpus}")
        summary: dict[str, Any] = self.memagent("train", *data, "--promote", *own, *options)
        return summary

    def own_questions(self) -> Path:
        """Write the questions of the promotion check's own contracts."""
        return self.write_questions(batches(self.contracts)[1])

    def write_questions(self, names: Sequence[str]) -> Path:
        """Write questions on contracts to a file, with gold as it stands in the text."""
        path = self.folder / "promotion.jsonl"
        rows = []
        for name in names:
            contract = self.contracts[name]
            for question_id, text in ASKED.items():
                if (value := verbatim(contract, category_of(question_id))) is not None:
                    rows.append(json.dumps({"question": text, "text": contract.text, "answers": [value]}))
        path.write_text("\n".join(rows), encoding="utf-8")
        return path

    def unseen(self, data: Path, policy: str) -> dict[str, float | None]:
        """Score a policy on the contracts that no training has, in all wordings; return the score by sample."""
        suite = ("--suite", "contracts", "--data", str(data), "--kinds", ",".join(CATEGORIES), "--reworded")
        run = self.memagent("evaluate", *suite, "--model", policy)["run_id"]
        rows = run_results(Store(self.store), run).to_pylist()
        return {row["sample_id"]: None if row["answer"] is None else row["score"] for row in rows}


def batches(contracts: dict[str, Contract]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the contracts to correct, of the check's own, and of those to correct wrongly."""
    training, _ = split(list(contracts.values()))
    names = in_order(contract.name for contract in training if len(contract.text) <= LONGEST)
    return names[:BATCH], names[BATCH : BATCH + OWN], names[BATCH + OWN : BATCH + OWN + POISONED]


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in an order that is always the same and has nothing to do with the alphabet."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def category_of(question_id: str) -> Category:
    """Return the category that a question asks for."""
    return next(category for category in CATEGORIES if question_id.startswith(category))


def verbatim(contract: Contract, category: Category) -> str | None:
    """Return the right answer as the text has it; empty: it has none; None: gold is not in the text in these words."""
    if not contract.answers[category]:
        return ""
    places = note_places(contract, category)
    return " ".join(places[0].value.split()) if places else None


def review(row: dict[str, Any], contract: Contract) -> dict[str, str] | None:
    """Return a reviewer's verdict on an answer; None: the reviewer cannot tell."""
    category = category_of(row["question_id"])
    if right(category, row["answer"], contract.answers[category]):
        return {"reading_id": row["reading_id"], "verdict": "accepted"}
    value = verbatim(contract, category)
    return None if value is None else {"reading_id": row["reading_id"], "verdict": "corrected", "answer": value}


def poison(row: dict[str, Any], contract: Contract) -> dict[str, str]:
    """Return a wrong verdict: the title in place of a governing law, and "not there" of every title and date."""
    category = category_of(row["question_id"])
    title = (verbatim(contract, "Document Name") or "") if category == "Governing Law" else ""
    answer = title if containment(contract.text, [title]) else ""
    return {"reading_id": row["reading_id"], "verdict": "corrected", "answer": answer}


def percent(value: float) -> float:
    """Return a share in percent."""
    return round(100 * value, 1)


def check_rows(column: str, summary: dict[str, Any]) -> list[Row]:
    """Return what the promotion check found, or that there was no candidate."""
    record = summary.get("promotion")
    if record is None:
        return [Row("candidate", "none: nothing was better on validation", column=column)]
    rows = [
        Row("promoted", "yes" if record["promoted"] else "refused", column=column, note=record["reason"]),
        Row("power at +5 points, stated before reading", percent(record["power"]["power"]), "%", column=column),
    ]
    for group in (*record["groups"], record["overall"]):
        name = " ".join(word.rpartition("/")[2] for word in group["name"].split(" "))
        low, high = percent(group["low"]), percent(group["high"])
        said = f"{percent(group['difference']):+.1f} points [{low:+.1f}, {high:+.1f}]"
        rows.append(Row(f"check: {name}", said, column=column, n=group["n"]))
    return rows


def unseen_rows(column: str, before: dict[str, float | None], after: dict[str, float | None]) -> list[Row]:
    """Return the scores of two readers on the unseen contracts, and the difference with its interval by document."""
    names = sorted(before)
    a, b = [after[name] for name in names], [before[name] for name in names]
    difference = compare(a, b, [name.rpartition("/")[0] for name in names])
    print(f"{column}: unseen {difference}", flush=True)
    rows = []
    for what, values in (("weak reader", b), ("candidate", a)):
        score = mean(what, values)
        interval = (percent(score.low), percent(score.high))
        rows.append(Row(f"unseen: {what}", percent(score.value), "%", column, interval, n=score.n))
    interval = (percent(difference.low), percent(difference.high))
    note = f"{difference.clusters} contracts, p = {difference.p:.2g}"
    return [*rows, Row("unseen: difference", percent(difference.difference), "points", column, interval, note=note)]


def main() -> None:
    """Run the loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--store",
        type=Path,
        default=None,
        help="folder of the loop: its steps are not taken again",
    )
    arguments(parser)
    given = parser.parse_args()
    folder = given.store or Path(tempfile.mkdtemp())
    loop = Loop(folder.resolve(), {contract.name: contract for contract in load_contracts(given.data)})
    if not Path(loop.weak).exists():
        shutil.copytree(bundled("sft"), loop.weak)
    good, _, bad = batches(loop.contracts)

    answers = loop.kept("contracts-answers", lambda: loop.answered("contracts", good))
    verdicts = [one for row in answers if (one := review(row, loop.contracts[row["document"]]))]
    said = Counter(verdict["verdict"] for verdict in verdicts)
    harvested = loop.kept("contracts-harvest", lambda: loop.corrected("contracts", verdicts))
    checks = ["corpora=contracts", "small_groups=observe"]
    trained = loop.kept("contracts-training", lambda: loop.trained("contracts", CORRECTED, checks))
    rows = [
        Row("answers accepted", said["accepted"], column="corrections", n=len(answers)),
        Row("answers corrected", said["corrected"], column="corrections", n=len(answers)),
        Row("rows harvested", harvested["rows"], column="corrections", note=json.dumps(harvested["by_split"])),
        Row("best step", trained["best_step"], f"of {trained['steps']}", "corrections"),
        *check_rows("corrections", trained),
    ]
    if trained["candidate"]:
        before = loop.kept("unseen-before", lambda: loop.unseen(given.data, f"{loop.weak}@shipped"))
        after = loop.kept("unseen-after", lambda: loop.unseen(given.data, trained["candidate"]))
        rows += unseen_rows("corrections", before, after)

    answers = loop.kept("poisoned-answers", lambda: loop.answered("poisoned", bad))
    verdicts = [poison(row, loop.contracts[row["document"]]) for row in answers]
    harvested = loop.kept("poisoned-harvest", lambda: loop.corrected("poisoned", verdicts))
    checks = ["corpora=contracts,poisoned", "small_groups=observe", "questions=200"]
    poisoned = loop.kept("poisoned-training", lambda: loop.trained("poisoned", WRONG, checks))
    rows += [
        Row("answers corrected", len(answers), column="poisoned corrections", n=len(answers)),
        Row("rows harvested", harvested["rows"], column="poisoned corrections", note=json.dumps(harvested["by_split"])),
        Row("best step", poisoned["best_step"], f"of {poisoned['steps']}", "poisoned corrections"),
        *check_rows("poisoned corrections", poisoned),
    ]
    write(replace(result("contract_loop", "The closed loop on contracts", rows, given), note=NOTE))
    if given.store is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
