"""Scores as benchmarks publish them: LongBench (arXiv 2308.14508), LongBench v2 (arXiv 2412.15204), BABILong (arXiv
2406.10149), OpenAI MRCR (its data card) and OOLONG (arXiv 2511.02817).

Values are in 0..1. One thing differs from what is published: Chinese is cut into characters, not into jieba's words.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import NamedTuple

from memagent.evaluation.contract_match import parse_date
from memagent.evaluation.metrics import Metric, f1, spaced, token_f1
from memagent.evaluation.texts import Match, Sample

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def qa_f1(prediction: str, gold: Sequence[str]) -> float:
    """Return LongBench's F1: words without ASCII punctuation and articles, best of the answers.

    It differs from `metrics.f1` where nothing is left ("the" for "the"): 0.
    """
    said, *meant = (_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split() for text in (prediction, *gold))
    return max((token_f1(said, words) for words in meant), default=0.0) if said else 0.0


def rouge_l(prediction: str, gold: Sequence[str], cut: Callable[[str], str] = str) -> float:
    """Return the best ROUGE-L F1 of summaries, over sets of words, as of the package rouge 1.0.1 that LongBench calls.

    Sentences end at full stops. Common words are those of the longest common subsequence of any two sentences.
    """
    return max((_rouge_l(_sentences(cut(prediction)), _sentences(cut(answer))) for answer in gold), default=0.0)


def _sentences(text: str) -> list[list[str]]:
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _rouge_l(said: list[list[str]], meant: list[list[str]]) -> float:
    if not said or not meant:
        return 0.0
    common = {word for one in meant for other in said for word in _common(one, other)}
    precision, recall = (len(common) / len({word for one in side for word in one}) for side in (said, meant))
    return 2 * precision * recall / (precision + recall + 1e-8)


def _common(a: list[str], b: list[str]) -> set[str]:
    """Return the words of a longest common subsequence, of several the one that rouge takes."""
    lengths = [[0] * (len(b) + 1)]
    for word in a:
        above, row = lengths[-1], [0]
        for j, other in enumerate(b):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        lengths.append(row)
    i, j, words = len(a), len(b), set()
    while i and j:
        if a[i - 1] == b[j - 1]:
            words.add(a[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def count_share(prediction: str, gold: Sequence[str], named: str = r"(.*)") -> float:
    """Return the share of the prediction's numbers that are the gold's; `named` finds that in a gold text."""
    numbers = re.findall(r"\d+", prediction)
    right = {found[1] for answer in gold if (found := re.search(named, answer))}
    return max((numbers.count(number) / len(numbers) for number in right), default=0.0) if numbers else 0.0


def code_similarity(prediction: str, gold: Sequence[str]) -> float:
    """Return the similarity of the first line that has no comment or Markdown, in hundredths (fuzzywuzzy's ratio)."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return max((round(100 * SequenceMatcher(None, line, answer).ratio()) / 100 for answer in gold), default=0.0)


def classification(prediction: str, gold: str, classes: Sequence[str]) -> float:
    """Return 1 for the gold's class alone, and its share where the prediction names several of the `classes`."""
    named = [name for name in classes if name in prediction]
    for name in named:  # as published: after one that is removed, the next is not looked at
        if name in gold and name != gold:
            named.remove(name)
    return 1 / len(named) if gold in named else 0.0


class LongBenchSet(NamedTuple):
    """How a data set of LongBench is asked and scored."""

    score: Metric | None
    """None: by the classes of the record."""
    ask: str = "{input}"
    """The question, in short what the published prompt asks; without ``{input}`` the set has none of its own."""
    first_line: bool = False
    """Whether only the first line of an answer counts: few-shot sets, whose answers go on with a further example."""


_rouge_zh: Metric = partial(rouge_l, cut=spaced)
_ABSTRACT = '{input}\n\nWhich paragraph is this abstract from? The answer must be like "Paragraph 1", "Paragraph 2".'
_ABSTRACT_ZH = '{input}\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式'
_COUNT = "How many unique paragraphs are there after removing duplicates? Answer with the number only."
_QASPER = '{input}\nIf it cannot be answered from the article, write "unanswerable".'
LONGBENCH: Mapping[str, LongBenchSet] = {
    **dict.fromkeys(("narrativeqa", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), LongBenchSet(qa_f1)),
    "qasper": LongBenchSet(qa_f1, _QASPER),
    "multifieldqa_zh": LongBenchSet(f1),
    "dureader": LongBenchSet(_rouge_zh),
    "gov_report": LongBenchSet(rouge_l, "Write a one-page summary of the report."),
    "qmsum": LongBenchSet(rouge_l),
    "multi_news": LongBenchSet(rouge_l, "Write a one-page summary of all the news."),
    "vcsum": LongBenchSet(_rouge_zh, "请写一段总结，总结会议的内容。"),
    "trec": LongBenchSet(None, "Determine the type of the question, as in the examples.\n{input}", first_line=True),
    "triviaqa": LongBenchSet(qa_f1, "Answer the question on the passage.\n{input}", first_line=True),
    "samsum": LongBenchSet(rouge_l, "Summarize the dialogue into a few short sentences.\n{input}", first_line=True),
    "lsht": LongBenchSet(None, "请判断给定新闻的类别。\n{input}", first_line=True),
    "passage_count": LongBenchSet(count_share, _COUNT),
    "passage_retrieval_en": LongBenchSet(partial(count_share, named=r"Paragraph (\d+)"), _ABSTRACT),
    "passage_retrieval_zh": LongBenchSet(partial(count_share, named=r"段落(\d+)"), _ABSTRACT_ZH),
    "lcc": LongBenchSet(code_similarity, "Write the next line of the code."),
    "repobench-p": LongBenchSet(code_similarity, "Write the next line of the code, after this:\n{input}"),
}
"""The published table of data sets and metrics; those of LongBench-E end with ``_e`` and are scored alike."""


def longbench(sample: Sample, answer: str) -> float:
    """Score an answer to a LongBench sample by the metric of its data set, which is the task."""
    scored = LONGBENCH[sample.task.removesuffix("_e")]
    text = answer.lstrip("\n").split("\n")[0] if scored.first_line else answer
    if scored.score is None:
        return max(classification(text, gold, sample.about["classes"]) for gold in sample.answers)
    return scored.score(text, sample.answers)


_CHOICE = re.compile(r"The correct answer is \(?([A-D])")
_LETTER = re.compile(r"\(?([A-D])(?:[).:]|\Z)")


def choice(sample: Sample, answer: str) -> float:
    """Return 1 for the right choice of LongBench v2, said as its prompt asks ("The correct answer is (B)") or first.

    "B", "(B)" and "B. Rome" are taken as well, since the answer of a reading is short.
    """
    plain = answer.replace("*", "").strip()
    found = _CHOICE.search(plain) or _LETTER.match(plain)
    return float(found is not None and found[1] in sample.answers)


def mrcr(sample: Sample, answer: str) -> float:
    """Return the similarity of texts after the random start that OpenAI MRCR asks for; 0 without that start."""
    start = str(sample.about["start"])
    if not answer.startswith(start):
        return 0.0
    said = answer.removeprefix(start)
    return max(SequenceMatcher(None, said, gold.removeprefix(start)).ratio() for gold in sample.answers)


_NUMBER = re.compile(r"[+-]?\d{1,100}")
_PHRASES = ("more common", "less common", "same frequency")


def oolong(sample: Sample, answer: str) -> float:
    """Score an answer of OOLONG (synthetic part): 1 for the gold; 0.75 to the power of a number's distance.

    What counts of an answer stands after its last colon; without one it is the whole answer if it is short, else the
    last word. Comparisons may be said in other words around "more common", "less common" and "same frequency".
    """
    gold, kind = sample.answers[0], str(sample.about["answer_type"]).rpartition(".")[2]
    said = _stated(answer)
    if said == gold or (said in _PHRASES and said in gold):
        return 1.0
    if kind == "NUMERIC" and _NUMBER.fullmatch(said) and _NUMBER.fullmatch(gold):
        return 0.75 ** min(1000, abs(int(gold) - int(said)))
    return float(kind == "DATE" and (date := parse_date(said)) is not None and date.isoformat() == gold)


def _stated(answer: str) -> str:
    *before, said = answer.split(":")
    said = said.strip()
    if not before:
        return said if len(said) < 20 or not said else said.split()[-1]
    said = said.translate(dict.fromkeys(map(ord, "*[]")))
    return said if len(said) < 20 else next((phrase for phrase in _PHRASES if phrase in said), said)


_LABELS = {
    "qa1 qa2 qa3 qa4 qa11 qa12 qa13": "bathroom bedroom garden hallway kitchen office",
    "qa5": "bill fred jeff mary apple football milk",
    "qa6 qa9 qa17 qa18": "no yes",
    "qa7": "none one three two",
    "qa8": "apple football milk nothing",
    "qa10": "maybe no yes",
    "qa14": "bedroom cinema kitchen office park school",
    "qa15": "cat mouse sheep wolf",
    "qa16": "gray green white yellow",
    "qa19": "e,e e,n e,s n,e n,n n,w s,e s,s s,w w,n w,s w,w",
    "qa20": "bedroom bored garden hungry kitchen thirsty tired",
}
BABILONG = {task: labels.split() for tasks, labels in _LABELS.items() for task in tasks.split()}
"""What each task may be answered with."""


def babilong(sample: Sample, answer: str) -> float:
    """Return 1 if the gold is the only label that the first sentence names, those of the question aside."""
    said, question, gold = answer.lower().split(".")[0], sample.question.lower(), sample.answers[0].lower()
    named = {label for label in BABILONG[sample.task] if label in said and label not in question}
    return float(named == set(gold.split(",") if len(gold) > 3 else [gold]))


PUBLISHED: Mapping[Match, Callable[[Sample, str], float]] = {
    **{"longbench": longbench, "choice": choice, "mrcr": mrcr, "oolong": oolong, "babilong": babilong}
}
"""The metric of each `match` of a sample that needs more of it than the gold."""
