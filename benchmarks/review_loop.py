"""Corrections given on the review pages, harvested and trained on: what do they do for unseen documents?

    python -m benchmarks.review_loop --data FOLDER [--store DIR] [--corrections 200]

FOLDER holds gold.jsonl and contracts/ (CUAD). A weak reader, nano@sft asked in wordings that its training never had,
answers questions on contracts. A scripted reviewer, who knows gold, opens the review server in a headless Chromium and
works through the answers by keys: accepts what is right, selects or writes what is wrong, says "not in the document".
The corrections are harvested and trained on, and the candidate goes through the promotion check. Then weak reader and
candidate read contracts that no training has. Everything runs through the commands and the review pages.
"""

import argparse
import getpass
import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.contract_loop import ASKED, CORRECTED, Loop, category_of, check_rows, in_order, unseen_rows, verbatim
from benchmarks.record import Row, arguments, result, write
from benchmarks.review import Served
from infra.store.delta import Table
from infra.store.location import Store
from memagent.evaluation.contract_match import right
from memagent.evaluation.contracts import Contract, load_contracts, split
from memagent.nano import bundled
from tests.support.scripted_reviewer import ACCEPT, Review, Shown, review

CORPUS = "contracts"
LONGEST = 30_000
"""Characters of the corrected contracts and of the check's own at most."""
UNSEEN = {"unseen": 50_000, "all": 10**9}
"""Sets of contracts that no training has, by name, and characters of their contracts at most."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CHECKS = ("corpora=contracts", "small_groups=observe", "n=25")
NOTE = """\
The weak reader is `nano@sft`, asked in wordings that its training never had. The texts of the corrected contracts and
of the check's own it knows from supervised training, in other wordings; the unseen ones no training had. These are
asked in four wordings, of which the corrections had two. The difference is paired, its interval by contract. The
reviewer works through the list of unchecked answers, accepts what is right, and stops after the last correction. Unseen
contracts of up to 50,000 characters were read first, as planned; all 80 afterwards, when the first result was known.
"""


@dataclass(frozen=True)
class DeskLoop(Loop):
    """The loop with a review server in place of a file of verdicts."""

    own: tuple[str, ...] = ()
    """Names of the contracts of the promotion check's own questions."""

    def own_questions(self) -> Path:
        """Write the questions of the promotion check's own contracts."""
        return self.write_questions(self.own)

    def reviewed(self, corrections: int) -> dict[str, Any]:
        """Have the reviewer work through the review server; return what was said and how long it took."""
        served = Served(Store(self.store), self.folder / "home", [getpass.getuser()])
        try:
            done = self._review(served, corrections)
        finally:
            served.stop()
        rows = Table(Store(self.store), "feedback").read(CORPUS, ["verdict", "spans"]).to_pylist()
        return {
            **done.said,
            "corrected": done.corrected,
            "median": statistics.median(done.seconds),
            "stored": len(rows),
            "with_place": sum(bool(row["spans"]) for row in rows if row["verdict"] == "corrected"),
        }

    def _review(self, served: Served, corrections: int) -> Review:
        with sync_playwright() as playwright:
            installed = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=installed, args=FLAGS, timeout=300_000)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(300_000)
            page.goto(served.link(getpass.getuser()))
            expected = len(Table(Store(self.store), "answers").read(CORPUS, ["reading_id"]))
            while f"{expected:,} answers" not in page.inner_text(".status"):
                page.wait_for_timeout(1_000)
                page.reload()
            done = review(page, served.address, self.judge, corrections)
            browser.close()
        return done

    def judge(self, shown: Shown) -> str | bool | None:
        """Return what the reviewer thinks of an answer on the page."""
        contract = self.contracts[shown.document]
        category = category_of(next(name for name, text in ASKED.items() if text == shown.question))
        if right(category, shown.answer, contract.answers[category]):
            return ACCEPT
        return verbatim(contract, category)


def chosen(contracts: dict[str, Contract], batch: int, own: int) -> tuple[list[str], list[str]]:
    """Return the names of the contracts to correct and of the check's own: none is long."""
    training, _ = split(list(contracts.values()))
    names = in_order(contract.name for contract in training if len(contract.text) <= LONGEST)
    return names[:batch], names[batch : batch + own]


def unseen_folder(data: Path, contracts: Sequence[Contract], target: Path, longest: int) -> Path:
    """Write a folder with the held-out contracts that are not too long; return it."""
    _, held_out = split(contracts)
    names = {contract.name for contract in held_out if len(contract.text) <= longest}
    (target / "contracts").mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(data / "contracts" / name, target / "contracts" / name)
    lines = (data / "gold.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["file"] in names]
    (target / "gold.jsonl").write_text("\n".join(kept), encoding="utf-8")
    return target


def main() -> None:
    """Run the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=None, help="folder of the loop: its steps are not taken again")
    parser.add_argument("--corrections", type=int, default=200)
    parser.add_argument("--contracts", type=int, default=60, help="that are asked about")
    parser.add_argument("--steps", type=int, default=CORRECTED.steps, help="of the training")
    arguments(parser)
    given = parser.parse_args()
    folder = (given.store or Path(tempfile.mkdtemp(prefix="review-loop-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    contracts = {contract.name: contract for contract in load_contracts(given.data)}
    batch, own = chosen(contracts, given.contracts, 24)
    loop = DeskLoop(folder, contracts, tuple(own))
    if not Path(loop.weak).exists():
        shutil.copytree(bundled("sft"), loop.weak)

    answers = loop.kept("answers", lambda: loop.answered(CORPUS, batch))
    said = loop.kept("review", lambda: loop.reviewed(given.corrections))
    harvested = loop.kept("harvest", lambda: loop.memagent("harvest", CORPUS, "--model", loop.weak))
    size = replace(CORRECTED, steps=given.steps)
    trained = loop.kept("training", lambda: loop.trained(CORPUS, size, CHECKS))
    rows = review_rows(said, len(answers), harvested)
    rows += [Row("best step", trained["best_step"], f"of {trained['steps']}"), *check_rows("", trained)]
    if trained["candidate"]:
        for name, longest in UNSEEN.items():
            unseen = unseen_folder(given.data, list(contracts.values()), folder / name, longest)
            before = loop.kept(f"{name}-before", partial(loop.unseen, unseen, f"{loop.weak}@shipped"))
            after = loop.kept(f"{name}-after", partial(loop.unseen, unseen, trained["candidate"]))
            which = "all unseen" if name == "all" else f"unseen, up to {longest:,} characters"
            rows += [replace(row, name=row.name.replace("unseen", which)) for row in unseen_rows("", before, after)]
    write(replace(result("review_loop", "Corrections on the review pages, trained on", rows, given), note=NOTE))
    if given.store is None:
        shutil.rmtree(folder)


def review_rows(said: dict[str, Any], answers: int, harvested: dict[str, Any]) -> list[Row]:
    """Return what was done on the review pages, and what came of it."""
    how = ", ".join(f"{said.get(name, 0)} {name}" for name in ("marked", "written", "absent"))
    return [
        Row("answers", answers),
        Row("answers corrected on the review pages", said["corrected"], note=how),
        Row("answers accepted on the review pages", said.get("accepted", 0)),
        Row("seconds of a verdict by keys, in the middle", round(said["median"], 2), "s"),
        Row("verdicts in the table", said["stored"], note=f"{said['with_place']} corrections with their place"),
        Row("rows harvested", harvested["rows"], note=json.dumps(harvested["by_split"])),
    ]


if __name__ == "__main__":
    main()
