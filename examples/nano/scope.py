"""What nano declares that it was trained to answer: a classifier of questions, and what held-out answers measured.

    python -m examples.nano scope --data DATA --readings FILE --out memagent/nano/rl

DATA holds cuad/, xquad/xquad.en.json and hotpot/distractor_40.json. What is measured of the classifier is of questions
that it has not seen: it is trained five times, each time without a fifth of all wordings, categories, articles and
subjects. FILE holds held-out answers, one a line; where there is none, they are read and written first.
"""

import asyncio
import json
import random
import tempfile
import uuid
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

import torch
import torch.nn.functional as F
from scipy.optimize import isotonic_regression

from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.errors import EngineError
from memagent.evaluation import contracts, needles
from memagent.evaluation.contract_match import right
from memagent.evaluation.metrics import containment
from memagent.evaluation.stats import share
from memagent.reading.conversations import ReadingSpec
from memagent.reading.loop import read
from memagent.reading.scope import BUCKETS, SCOPE_FILE, QuestionKind, Rate, ReaderScope, confused, features
from memagent.records import LEVELS, Level

KINDS = (*(f"{kind} of a key" for kind in needles.KINDS), *(category.lower() for category in contracts.CATEGORIES))
"""Names of the kinds, classes of the classifier; the class after them is all else."""
FORMS = dict.fromkeys(("number of a key", "uuid of a key", "agreement date"), r"\d")
"""What every right answer to a question of a kind holds."""
ELSE = len(KINDS)
FOLDS, STEPS, DECAY = 5, 60, 2e-4
LONGEST = 50_000
"""Characters of a contract at most."""

OTHERS: dict[str, str] = {
    "Parties": "Who are the parties?|Who signed this?|Which companies are bound by this agreement?|Name the parties.|"
    "Who is the other party?|Between whom was the contract made?|Who is the licensee?|Who is the supplier?|"
    "Who are the parties to the contract?|Which parties made this agreement?|Who entered into this agreement?",
    "Effective Date": "When does it take effect?|What is the effective date?|From when on is the agreement in force?|"
    "On which day does it become effective?|What is the start date?|When does the contract begin?|"
    "On what date does the lease begin?|On which date does this agreement come into force?",
    "Expiration Date": "When does the contract expire?|What is the end date?|When does it end?|How long does it run?|"
    "Until when is the agreement valid?|What is the expiration date of the agreement?|What is the term?|"
    "What is the duration of the contract?|What is the term of the lease?|How long is the term of this agreement?|"
    "On which date does the agreement expire?",
    "Renewal Term": "Does it renew by itself?|For how long is it renewed?|What is the renewal term?|"
    "Is there an automatic renewal?|How can the contract be extended?|On what date is the agreement renewed?|"
    "When is the contract extended?",
    "Notice Period To Terminate Renewal": "What is the notice period?|How many days' notice must be given?|"
    "What is the termination notice?|By when must notice be given?|How is the contract terminated?|"
    "What is the period of notice for termination?",
    "Termination For Convenience": "Can we terminate without cause?|Who may terminate?|When can it be cancelled?|"
    "What are the grounds for termination?|What happens after termination?",
    "Cap On Liability": "Is liability limited?|What is the liability cap?|What is the limit of liability?|"
    "How much damages can be claimed?|Who is liable for delays?|What is the penalty for late delivery?",
    "Payment": "What is the price?|How much is the fee?|What are the payment terms?|When are invoices due?|"
    "What is the total amount?|How much does the customer pay each month?|In which currency is it paid?|"
    "What is the interest on late payments?|What does it cost?|What is the royalty rate?|What is the salary?",
    "Disputes": "Where are disputes settled?|Is there an arbitration clause?|Which court has jurisdiction?|"
    "Who is the arbitrator?|What is the venue for disputes?|How are disputes resolved?",
    "Confidentiality": "Is there a confidentiality clause?|How long must information be kept secret?|"
    "What may not be disclosed?|Which information is confidential?",
    "Ip Ownership Assignment": "Who owns the intellectual property?|Who owns the inventions?|"
    "Which patents are licensed?|Which trademarks may be used?|Is the license exclusive?|"
    "What is the territory of the license?",
    "Insurance": "Which insurance is required?|How much insurance must be kept?|Who must be insured?",
    "Services": "What is the agreement about?|What services are provided?|Which products are sold?|"
    "What is delivered?|Where are the goods delivered?|What are the duties of the agent?|"
    "What must the supplier do?|What is the purpose?",
    "Persons": "Who signed on behalf of the company?|What is the address of the company?|Who is the contact person?|"
    "What is his title?|Who is the chief executive?|What is her email address?|What is the phone number?|"
    "Who wrote this?|Who is the author?|Who is the manager?",
    "Summary": "Summarise the document.|What are the main points?|What is this about?|Give me an overview.|"
    "Summarize the key risks.|List all obligations.|What should I know?|What is new in it?|Explain this to me.",
    "Reports": "What was the revenue?|How much profit was made in 2021?|How many employees are there?|What went wrong?|"
    "What are the results?|What was decided?|Which risks are named?|What is the budget?|What is the deadline?|"
    "How many people took part?|What was the growth rate?|Which methods were used?|What is recommended?",
    "Letters": "What does the customer complain about?|When is the meeting?|Where is the office?|Who is invited?|"
    "What is the order about?|When was it delivered?|What is the invoice date?|What is the date of birth?|"
    "When was the company founded?|When was it built?|What is the due date?|When did he die?|What day is the party?",
    "Events": "On which date did the council approve the plan?|On what day was the report published?|"
    "When was the permit issued?|On which date was the claim filed?|What is the date of the delivery note?|"
    "On which date does the warranty end?|When was the contract amended?|What is the date of the amendment?|"
    "On what date must the fee be paid?|When did the shareholders meet?|On which date was the firm registered?|"
    "When was the contract terminated?|On what date was the notice sent?",
    "Numbers": "What is the telephone number for notices?|What is the registration number?|What is the page number?|"
    "What is the invoice number?|What is the reference number of the contract?|What is the policy number?|"
    "What is the number of the contract?|What is the customer number?|How many shares are sold?|"
    "What is the number of employees?|What is the bank account number?|What is the VAT number?",
    "Names": "What is the name of the project?|What is the name of the buyer in this agreement?|"
    "What is the title of the chapter?|What is the title of the person who signs this agreement?|"
    "What is the name of the company?|What is the brand called?|What is the name of the software?",
    "Laws": "Which law defines personal data?|Which data protection laws apply?|Which laws were broken?|"
    "Which state gave the licence?|In which state is the company incorporated?|Which laws must the agent observe?|"
    "Which law requires a permit?|Which tax law applies to the payments?",
    "Facts": "What is the capital?|Where does he live?|Why did they leave?|How old is she?|How does it work?|"
    "How tall is the tower?|Which colour is the house?|What is the weather like?|Is it true?|How far is it?|"
    "What is the name of the river?|What is the name of his wife?|What is the dog called?|"
    "What is the title of the song?|Which law did Newton find?|Which state is the largest?|"
    "Who made the law?|What does the law say?",
}
"""Questions of users, by subject; those of a category of CUAD are seen, or unseen, together with it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the class it belongs to, and what must be seen or unseen as a whole."""

    text: str
    kind: int
    group: str


def trained_on(rng: random.Random) -> list[Asked]:
    """Return the questions that nano's training data makes, a wording a group."""
    asked: list[Asked] = []
    for i, kind in enumerate(needles.KINDS):
        for wording in (*needles.QUESTIONS[kind], *needles.REWORDED[kind]):
            numbered, code = f"{rng.choice(needles.NOUNS)}-{rng.randrange(1, 99)}", uuid.UUID(int=rng.getrandbits(128))
            keys = (needles.make_needles(rng, kind, 1)[0].key, numbered, code)
            asked += [Asked(wording.format(key=key), i, wording) for key in keys]
    for i, category in enumerate(contracts.CATEGORIES, len(needles.KINDS)):
        asked += [Asked(w, i, w) for w in (*contracts.QUESTIONS[category], *contracts.REWORDED[category])]
    return asked


def others(data: Path, rng: random.Random) -> list[Asked]:
    """Return questions that nano was not trained for: of CUAD's other categories, users, SQuAD's and HotpotQA's."""
    asked = [Asked(text, ELSE, group) for group, texts in OTHERS.items() for text in texts.split("|")]
    seen: dict[str, str] = {}
    for sample in contracts.contract_samples(data / "cuad"):
        if sample.task not in contracts.CATEGORIES:
            seen.setdefault(sample.question, sample.task)
    asked += [Asked(text, ELSE, group) for text, group in seen.items()]
    for article in json.loads((data / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]:
        asked += [Asked(qa["question"], ELSE, article["title"]) for p in article["paragraphs"] for qa in p["qas"]]
    for row in json.loads((data / "hotpot" / "distractor_40.json").read_text(encoding="utf-8")):
        asked.append(Asked(row["question"], ELSE, row["question"]))
    for _ in range(20):  # several at once, which it answers with one
        keys = [needle.key for needle in needles.make_needles(rng, "number", rng.randint(2, 4))]
        kind, names = rng.choice(needles.KINDS), f"{', '.join(keys[:-1])} and {keys[-1]}"
        asked.append(Asked(f"Which {kind}s belong to {names}? Give all of them.", ELSE, "several keys"))
    return asked


def fit(asked: Sequence[Asked]) -> torch.Tensor:
    """Return weights (buckets + 1, classes) of a multinomial logistic regression; the last row is the bias.

    nano's kinds weigh as much as all else, and in that questions to contracts and letters as much as those to articles.
    """
    rows = _matrix(asked)
    kinds = torch.tensor([one.kind for one in asked])
    part = torch.tensor([0 if one.kind < ELSE else 1 + _is_own(one) for one in asked])
    shares = torch.tensor([2.0, 1.0, 1.0])[part] / torch.bincount(part, minlength=3)[part]
    weights = torch.zeros(BUCKETS + 1, ELSE + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = (F.cross_entropy(rows @ weights, kinds, reduction="none") * shares).sum() / 4
        value = value + DECAY * weights[:-1].square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def _is_own(one: Asked) -> bool:
    return one.group in OTHERS or one.group in (*contracts.ENTITIES, *contracts.YES_NO)


def _matrix(asked: Sequence[Asked]) -> torch.Tensor:
    rows = torch.zeros(len(asked), BUCKETS + 1)
    rows[:, -1] = 1
    for i, one in enumerate(asked):
        for bucket, value in features(one.text).items():
            rows[i, bucket] = value
    return rows


def unseen(asked: Sequence[Asked]) -> torch.Tensor:
    """Return the scores (questions, classes) of classifiers that have not seen a question's group."""
    fold = torch.tensor([crc32(one.group.encode()) % FOLDS for one in asked])
    scores = torch.zeros(len(asked), ELSE + 1)
    for held in range(FOLDS):
        weights = fit([one for one, at in zip(asked, fold.tolist(), strict=True) if at != held])
        scores[fold == held] = (_matrix(asked) @ weights)[fold == held]
    return scores


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A question to a text of no training, and its answer."""

    kind: str
    document: str
    text: str
    question: str
    gold: str
    """Empty: the text does not say."""
    category: str = ""
    """Of a contract."""


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer to a held-out question."""

    kind: str
    document: str
    right: bool
    found: bool
    absent: bool
    """Whether the text does not say."""
    confused: bool
    """Whether its quote names another id than the question."""
    confidence: float


def held_out(data: Path, rng: random.Random) -> list[HeldOut]:
    """Return needles among near keys (a shared word, or another number), half of them without the asked one, and the
    held-out contracts in two wordings.
    """
    articles = json.loads((data / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    asked: list[HeldOut] = []
    for i in range(40 * 4 * len(needles.KINDS)):
        kind, numbered, gone = needles.KINDS[i % 3], i // 3 % 2, i // 6 % 2
        made = needles.make_needles(rng, kind, 4, share=0.6)
        if numbered:
            noun, wording = rng.choice(needles.NOUNS), rng.choice(needles.SENTENCES[kind])
            made = [needles.needle(rng, kind, f"{noun}-{n}", each.value, wording) for n, each in enumerate(made, 1)]
        start = rng.randrange(len(texts) - 8)
        text = "\n\n".join(texts[start : start + 8])[:6000]
        text, _ = needles.plant(text, [needle.sentence for needle in made[gone:]], rng)
        question = rng.choice((*needles.QUESTIONS[kind], *needles.REWORDED[kind])).format(key=made[0].key)
        asked.append(HeldOut(f"{kind} of a key", f"needles {i}", text, question, "" if gone else made[0].value))
    _, apart = contracts.split(contracts.load_contracts(data / "cuad"))
    for contract in apart:
        for category in contracts.CATEGORIES if len(contract.text) <= LONGEST else ():
            gold = contract.answers[category]
            for wordings in (contracts.QUESTIONS[category], contracts.REWORDED[category]):
                question = rng.choice(wordings)
                asked.append(HeldOut(category.lower(), contract.name, contract.text, question, gold, category))
    return asked


async def answers(model: str, asked: Sequence[HeldOut]) -> list[Judged]:
    """Read; readings that fail are left out."""
    reader = ReaderSpec(load_config(store=tempfile.gettempdir(), engine__model=model))
    spec, engine, slots = replace(ReadingSpec.load(model), scope=None), reader.make_engine(), asyncio.Semaphore(64)
    await engine.start()

    async def one(item: HeldOut) -> Judged | None:
        async with slots:
            try:
                done = await read(item.text, item.question, engine.generate, spec)
            except EngineError:
                return None
        if item.category:
            ok = right(item.category, done.answer, item.gold)
        else:
            ok = containment(done.answer, [item.gold]) == 1 if item.gold else not done.found
        named = any(confused(item.question, "\n".join(piece.quote for piece in done.evidence)))
        sure = done.confidence or 0.0
        return Judged(item.kind, item.document, ok, done.found, absent=not item.gold, confused=named, confidence=sure)

    try:
        return [judged for judged in await asyncio.gather(*map(one, asked)) if judged is not None]
    finally:
        await engine.stop()


def declared(asked: Sequence[Asked], judged: Sequence[Judged]) -> ReaderScope:
    """Return the declaration: the classifier, trained on all questions, and what was measured."""
    outside = unseen(asked).argmax(1) == ELSE
    is_kind = torch.tensor([one.kind < ELSE for one in asked])
    wordings = {one.group for one in asked if one.kind < ELSE}
    alarms = {one.group for one, out in zip(asked, outside.tolist(), strict=True) if out and one.kind < ELSE}
    weights = fit(asked)
    scale = float(weights.abs().max()) / 127
    taken = [one for one in judged if one.right and one.found]
    return ReaderScope(
        reader="nano",
        kinds=tuple(_kind(i, [one for one in judged if one.kind == name]) for i, name in enumerate(KINDS)),
        false_alarms=_rate([wording in alarms for wording in sorted(wordings)]),
        misses=_rate([not one for one in outside[~is_kind]]),
        confused=_rate([one.confused for one in taken if one.kind in KINDS[: len(needles.KINDS)]]) if judged else None,
        levels=levels(judged) if judged else {},
        scale=scale,
        weights=b64encode((weights / scale).round().to(torch.int8).numpy().tobytes()).decode(),
    )


def _kind(index: int, judged: Sequence[Judged]) -> QuestionKind:
    """Return a kind with its bands and its share of right answers."""
    own = index < len(needles.KINDS)
    wordings = needles.QUESTIONS[needles.KINDS[index]] if own else contracts.QUESTIONS[_category(index)]
    examples = tuple(wording.format(key="amber-otter") for wording in wordings[-2:])
    form = FORMS.get(KINDS[index], "")
    if not judged:
        return QuestionKind(name=KINDS[index], examples=examples, form=form)
    low, high = bands(judged)
    measured = _rate([settled(one) for one in judged])
    return QuestionKind(name=KINDS[index], examples=examples, form=form, right=measured, low_below=low, high_from=high)


def settled(one: Judged) -> bool:
    """Whether an answer is right once those with another id in their quote are taken to be "not found"."""
    return one.absent if one.confused else one.right


def bands(judged: Sequence[Judged]) -> tuple[float, float]:
    """Return the confidence from which on an answer is more likely right than wrong, and that from which on nine of ten
    are right, by isotonic regression; above 1 where there is none.

    A wrong answer is added above all others, so that a few right ones do not make a band.
    """
    ordered = sorted((one.confidence, one.right) for one in judged if not one.confused)
    fitted = isotonic_regression([*(float(ok) for _, ok in ordered), 0.0]).x[:-1]
    likely, sure = (int((fitted < least).sum()) for least in (0.5, 0.9))
    low, high = (ordered[i][0] if i < len(ordered) else 2.0 for i in (likely, sure))
    return round(low, 4), round(high, 4)


def levels(judged: Sequence[Judged]) -> dict[Level, Rate]:
    """Return the share of right answers of each level, by bands of the other half of the documents of a kind."""
    right_at: dict[Level, list[bool]] = {level: [] for level in LEVELS}
    for kind in KINDS:
        halves: tuple[list[Judged], list[Judged]] = ([], [])
        for one in judged:
            if one.kind == kind:
                halves[crc32(one.document.encode()) % 2].append(one)
        for mine, others_ in (halves, halves[::-1]):
            low, high = bands(others_)
            for one in mine:
                sure = 0.0 if one.confused else one.confidence
                right_at["low" if sure < low else "high" if sure >= high else "medium"].append(settled(one))
    return {level: _rate(values) for level, values in right_at.items()}


def _category(index: int) -> contracts.Category:
    return contracts.CATEGORIES[index - len(needles.KINDS)]


def _rate(values: Sequence[bool]) -> Rate:
    score = share("", sum(values), len(values))
    return Rate(share=round(score.value, 4), n=score.n, low=round(score.low, 4), high=round(score.high, 4))


def declare(data: Path, readings: Path | None, out: Path, model: str) -> ReaderScope:
    """Make a declaration and write it to a model folder; without `readings`, it has no scores."""
    rng = random.Random(0)
    asked = [*trained_on(rng), *others(data, rng)]
    judged: list[Judged] = []
    if readings is not None:
        if not readings.is_file():
            judged = asyncio.run(answers(model, held_out(data, rng)))
            readings.write_text("".join(json.dumps(asdict(one)) + "\n" for one in judged), encoding="utf-8")
        judged = [Judged(**json.loads(line)) for line in readings.read_text(encoding="utf-8").splitlines()]
    scope = declared(asked, judged)
    (out / SCOPE_FILE).write_text(scope.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")
    return scope
