"""Three questions on every contract of CUAD, with the accuracy on the 80 held-out contracts.

    python -m benchmarks.contracts --data FOLDER [--store DIR] [--set key=value ...]

FOLDER holds gold.jsonl and contracts/. Beside the reader: a one-line regular expression for the
governing law, and the same contracts with the answer taken out, where "not found" is right.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.record import Row, arguments, result, write
from infra.cluster.session import ray_session
from infra.store.location import Corpus, Store
from memagent.config import Config, load_config
from memagent.evaluation.contract_match import right
from memagent.evaluation.contracts import CATEGORIES, QUESTIONS, Contract, load_contracts, remove_answer, split
from memagent.evaluation.stats import mean
from memagent.records import Question
from pipelines.ask import ask
from pipelines.io.answers import answer_table
from pipelines.stages.ingest import ingest

LAW = re.compile(
    r"(?i:govern|constru|interpret)[^.]{0,200}?(?i:laws?) (?i:of|in) (?i:the )?"
    r"(?:(?i:state|commonwealth|province|republic)s? (?i:of ))?(?i:the )?([A-Z][A-Za-z]+(?: (?:of )?[A-Z][A-Za-z]+)*)"
)
ASKED = [Question(category, QUESTIONS[category][0]) for category in CATEGORIES]
Answers = dict[tuple[str, str], str]
"""(document, category) -> answer."""


def read_all(config: Config, corpus: str, folder: Path, questions: list[Question]) -> tuple[Answers, dict[str, Any]]:
    """Ingest a folder and ask; return (document, question id) -> answer, and the run's summary."""
    with ray_session(config.ray):
        taken = ingest(Corpus(Store(config.store), corpus), [str(folder)], config, f"ingest-{corpus}")
        summary = ask(corpus, questions, config)
    rows = answer_table(config, corpus, summary["run_id"])
    return {(row["document"], row["question_id"]): row["answer"] for row in rows}, {
        **summary,
        "ingest_seconds": taken["seconds"],
    }


def show(group: str, column: str, name: str, verdicts: Iterable[bool]) -> Row:
    """Print a share and return it as a row."""
    score = mean(name, [float(v) for v in verdicts])
    print(
        f"{f'{group}, {column}: {name}':70} {score.value:6.1%}  [{score.low:.1%}, {score.high:.1%}]  n={score.n}",
        flush=True,
    )
    value, low, high = (round(100 * share, 1) for share in (score.value, score.low, score.high))
    return Row(name, value, "%", column=column, interval=(low, high), n=score.n)


def accuracy(group: str, column: str, contracts: list[Contract], answers: Answers) -> list[Row]:
    """Show the accuracy of a reader by category, and by whether the contract has an answer."""
    rows = []
    for category in CATEGORIES:
        for kind, says in (("", True), (", not in the contract", False)):
            chosen = [c for c in contracts if bool(c.answers[category]) is says]
            if chosen and any((c.name, category) in answers for c in chosen):
                verdicts = [right(category, answers.get((c.name, category), "?"), c.answers[category]) for c in chosen]
                rows.append(show(group, column, f"{category.lower()}{kind}", verdicts))
    return rows


def regular_expression(contracts: list[Contract]) -> Answers:
    matches = {c.name: LAW.search(" ".join(c.text.split())) for c in contracts}
    return {(name, "Governing Law"): match.group(1) if match else "" for name, match in matches.items()}


def without_answers(contracts: list[Contract], folder: Path) -> None:
    """Write each contract three times, without the clauses that answer one question each."""
    for category in CATEGORIES:
        for contract in contracts:
            if contract.spans[category]:
                path = folder / category.replace(" ", "-") / contract.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(remove_answer(contract.text, contract.spans[category]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", default=None)
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    contracts = load_contracts(given.data)
    _, held = split(contracts)
    with tempfile.TemporaryDirectory() as name:
        config = load_config(sets=given.set, store=given.store or f"{name}/store")
        answers, summary = read_all(config, "contracts", given.data / "contracts", ASKED)
        keys = (
            "documents",
            "conversations",
            "prompt_tokens",
            "cached_tokens",
            "engine_seconds",
            "seconds",
            "policy_id",
        )
        print(json.dumps({k: summary[k] for k in keys} | {"ingest_seconds": summary["ingest_seconds"]}))
        law = regular_expression(contracts)
        expression, policy = "one regular expression", summary["policy_id"]
        everything = accuracy("all", policy, contracts, answers) + accuracy("all", expression, contracts, law)
        rows = accuracy("held out", policy, held, answers) + accuracy("held out", expression, held, law)
        without_answers(held, Path(name) / "removed")
        asked = [Question(q.question_id, q.text, (f"{q.question_id.replace(' ', '-')}/*",)) for q in ASKED]
        answers, _ = read_all(config, "removed", Path(name) / "removed", asked)
        for category in CATEGORIES:
            verdicts = [answer == "" for (_, question), answer in answers.items() if question == category]
            what = f'answer taken out: "not found", {category.lower()}'
            rows.append(show("held out", policy, what, verdicts))
    spent = [
        Row("reading", summary["engine_seconds"], "s of the engine", n=summary["conversations"]),
        Row("in all", round(summary["seconds"] + summary["ingest_seconds"], 1), "s"),
        Row("prompt tokens", summary["prompt_tokens"]),
        Row("of these from the prefix cache", summary["cached_tokens"]),
    ]
    records = (
        ("cost", "All contracts, three questions each", spent),
        ("held-out", f"{len(held)} contracts that training never saw", rows),
        ("all", f"All {len(contracts)} contracts", everything),
    )
    for part, title, kept in records:
        made = result("contracts", title, kept, given, number_format=config.engine.dtype)
        write(replace(made, benchmark=made.benchmark and f"{made.benchmark}-{part}"))


if __name__ == "__main__":
    main()
