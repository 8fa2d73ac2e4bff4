"""The contract suite: all 41 categories of CUAD (The Atticus Project, CC BY 4.0) over contracts never trained on."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from memagent.errors import UsageError
from memagent.tasks.contracts import QUESTIONS as TRAINED
from memagent.tasks.contracts import held_out
from memagent.tasks.loaders.public import Gold, read_contract, read_gold
from memagent.tasks.sample import Sample
from memagent.tasks.texts import Whole

ENTITIES: tuple[str, ...] = (
    "Document Name",
    "Parties",
    "Agreement Date",
    "Effective Date",
    "Expiration Date",
    "Renewal Term",
    "Notice Period To Terminate Renewal",
    "Governing Law",
)
"""Categories whose gold is a name, place, date or duration; blank where the contract does not say."""

YES_NO: tuple[str, ...] = (
    "Most Favored Nation",
    "Competitive Restriction Exception",
    "Non-Compete",
    "Exclusivity",
    "No-Solicit Of Customers",
    "No-Solicit Of Employees",
    "Non-Disparagement",
    "Termination For Convenience",
    "Rofr/Rofo/Rofn",
    "Change Of Control",
    "Anti-Assignment",
    "Revenue/Profit Sharing",
    "Price Restrictions",
    "Minimum Commitment",
    "Volume Restriction",
    "Ip Ownership Assignment",
    "Joint Ip Ownership",
    "License Grant",
    "Non-Transferable License",
    "Affiliate License-Licensor",
    "Affiliate License-Licensee",
    "Unlimited/All-You-Can-Eat-License",
    "Irrevocable Or Perpetual License",
    "Source Code Escrow",
    "Post-Termination Services",
    "Audit Rights",
    "Uncapped Liability",
    "Cap On Liability",
    "Liquidated Damages",
    "Warranty Duration",
    "Insurance",
    "Covenant Not To Sue",
    "Third Party Beneficiary",
)
"""Categories whose gold is Yes or No: is there such a clause?"""

GROUPS = {"entity": ENTITIES, "yes/no": YES_NO}
"""Names for all categories of a sort."""

_QUESTIONS: dict[str, str] = {name: wordings[0] for name, wordings in TRAINED.items()} | {
    # CUAD's descriptions of the categories that gold.jsonl gives no question for.
    "Notice Period To Terminate Renewal": "What is the notice period required to terminate renewal?",
    "Rofr/Rofo/Rofn": (
        "Is there a clause granting one party a right of first refusal, right of first offer or right of first "
        "negotiation to purchase, license, market, or distribute equity interest, technology, assets, products or "
        "services?"
    ),
    "Price Restrictions": (
        "Is there a restriction on the ability of a party to raise or reduce prices of technology, goods, or services "
        "provided?"
    ),
    "Affiliate License-Licensor": (
        "Does the contract contain a license grant by affiliates of the licensor or that includes intellectual "
        "property of affiliates of the licensor?"
    ),
    "Affiliate License-Licensee": (
        "Does the contract contain a license grant to a licensee (incl. sublicensor) and the affiliates of such "
        "licensee/sublicensor?"
    ),
}


def contract_samples(folder: str | Path, categories: Iterable[str] | None = None) -> Iterator[Sample]:
    """Yield the samples of the held-out contracts (`memagent.tasks.contracts.held_out`), by contract and category.

    `categories` are names of CUAD's or of `GROUPS`; by default all.

    The question is the first wording that training used for its three categories, else CUAD's own. Gold is one text,
    blank where the contract does not say; `memagent.tasks.contract_match.right` judges by ``about["category"]``. Facts
    are the annotated clauses that stand in the text verbatim, and ``about["clauses"]`` is how many were annotated: gold
    may be blank where there is a clause that gives no answer (an expiration "upon completion of the work").

    Raises:
        UsageError: the folder does not hold gold.jsonl and the contracts that it names, or they are malformed, or a
            category is not one of CUAD's.
    """
    folder = Path(folder)
    wanted = {category for name in categories or GROUPS for category in GROUPS.get(name, (name,))}
    if unknown := sorted(wanted - {*ENTITIES, *YES_NO}):
        known = ", ".join((*GROUPS, *ENTITIES, *YES_NO))
        raise UsageError(f"No category of CUAD: {', '.join(unknown)}. Known are {known}.")
    by_file: dict[str, list[Gold]] = {}
    for gold in read_gold(folder):
        if gold.category not in ENTITIES and gold.category not in YES_NO:
            raise gold.row.wrong("category", f"{gold.category!r} is no category of CUAD.")
        by_file.setdefault(gold.file, []).append(gold)
    if missing := sorted(file for file in by_file if not (folder / "contracts" / file).is_file()):
        # Which contracts are held out hangs on all of their names.
        raise UsageError(f"{folder / 'contracts'} lacks {len(missing)} contracts of gold.jsonl, first {missing[0]!r}.")
    for file in sorted(held_out(by_file)):
        text = read_contract(folder, file)
        whole = Whole(text)
        for gold in by_file[file]:
            if gold.category in wanted:
                yield _sample(gold, text, whole)


def _sample(gold: Gold, text: str, whole: Whole) -> Sample:
    question = _QUESTIONS.get(gold.category) or gold.question
    if not question:
        raise gold.row.wrong("question", f"{gold.category} has none.")
    facts = tuple(dict.fromkeys(span for span in gold.spans if span in text))
    return Sample(
        sample_id=f"{gold.file}/{gold.category}",
        task=gold.category,
        length=0,
        pieces=whole,
        question=question,
        answers=(gold.answer,),
        match="contract",
        facts=facts,
        depth=min(text.index(fact) for fact in facts) / len(text) if facts else None,
        about={
            "category": gold.category,
            "kind": "entity" if gold.category in ENTITIES else "yes/no",
            "document": gold.file,
            "clauses": len(gold.spans),
        },
    )
