"""RULER's own files: a record of each of the thirteen kinds in the form in which NVIDIA's scripts write it.

Prompts are those of scripts/data/synthetic/constants.py with `answer_prefix` apart; texts are short ones of our own.
"""

import json

import pytest

from memagent.evaluation.loaders import load_samples
from memagent.evaluation.ruler.kinds import KINDS

NIAH = (
    "Some special magic {type} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {type} afterwards.\n{context}\nWhat {verb} the special magic {asked} for {query} mentioned in the provided "
    "text?"
)
NIAH_PREFIX = " The special magic {asked} for {query} mentioned in the provided text {is_}"
VT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {query} in the text above."
)
CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text?"
)
QA = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me "
    "the answer and do not output any other words.\n\nQuestion: {query}"
)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
UUID = "6fc26dd8-8d6f-4ecf-b3e2-0b5d2c7d2b4b"


def niah(keys, values, type_="numbers", query=None):
    needles = [f"One of the special magic {type_} for {key} is: {value}." for key in keys for value in values]
    several = len(values) > 1 or query is not None
    words = {
        "type": type_,
        "asked": type_ if several else type_[:-1],
        "query": query or keys[0],
        "verb": "are all" if several else "is",
        "is_": "are" if several else "is",
    }
    context = "\n".join([NOISE, *needles, NOISE])
    return NIAH.format(context=context, **words), NIAH_PREFIX.format(**words), list(values)


FOUR = ["old-owl", "red-cup", "wet-sky", "dry-sea"]
MADE = {
    "niah_single_1": niah(["old-owl"], ["1234567"]),
    "niah_single_2": niah(["old-owl"], ["1234567"]),
    "niah_single_3": niah(["old-owl"], [UUID], "uuids"),
    "niah_multikey_1": niah(FOUR, ["1234567"]),
    "niah_multikey_2": niah(FOUR, ["1234567"]),
    "niah_multikey_3": niah([UUID], [UUID], "uuids"),
    "niah_multivalue": niah(["old-owl"], ["1234567", "2345678", "3456789", "4567890"]),
    "niah_multiquery": niah(FOUR, ["1234567"], query="old-owl, red-cup, wet-sky, and dry-sea"),
    "vt": (
        VT.format(context=f"VAR AAAAA = 11111. VAR BBBBB = VAR AAAAA. {NOISE}", query="11111")
        + " Answer: According to the chain(s) of variable assignment in the text above, 2 variables are assigned the "
        "value 11111, they are:  AAAAA BBBBB\n\n"
        + VT.format(context=f"{NOISE} VAR XAXAX = 12345. VAR YBYBY = VAR XAXAX.", query="12345"),
        " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are assigned the "
        "value 12345, they are: ",
        ["XAXAX", "YBYBY"],
    ),
    "cwe": (
        CWE.format(context="1. owl 2. cup") + " Answer: The top 10 words are: 1. owl\n" + CWE.format(context="1. sky"),
        " Answer: The top 10 words that appear most often in the list are:",
        ["sky"],
    ),
    "fwe": (
        FWE.format(context="abcdef .... ghijkl abcdef"),
        " Answer: According to the coded text above, the three most frequently appeared words are:",
        ["abcdef"],
    ),
    "qa_1": (QA.format(context="Document 1:\nParis is big.", query="What is big?"), " Answer:", ["Paris", "Paris!"]),
    "qa_2": (QA.format(context="Document 1:\nOslo\nOslo is old.", query="Is Oslo old?"), " Answer:", ["yes"]),
}


def record(kind, index):
    prompt, prefix, outputs = MADE[kind]
    return {
        "index": index,
        "input": prompt,
        "outputs": outputs,
        "length": 4010,
        "length_w_model_temp": 4037,
        "answer_prefix": prefix,
        "token_position_answer": 1203,
    }


def test_there_is_one_of_each_kind():
    assert MADE.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", MADE)
def test_a_file_as_nvidias_scripts_write_it(tmp_path, kind):
    folder = tmp_path / "4096" / "data" / kind
    folder.mkdir(parents=True)
    # The place of the answer, here the same for both; vt, cwe, fwe and qa count.
    indices = (977, 977) if kind.startswith("niah") else (0, 1)
    path = folder / "validation.jsonl"
    path.write_text("".join(json.dumps(record(kind, index)) + "\n" for index in indices))
    first, second = load_samples(path)
    assert (first.sample_id, second.sample_id) == (f"{kind}/4096/0", f"{kind}/4096/1")
    assert (first.task, first.length, first.about) == (kind, 4096, {"tokens": 4010})
    assert first.match == ("part" if kind.startswith("qa") else "all")
    prompt, _, outputs = MADE[kind]
    assert first.answers == tuple(outputs)
    text, _, question = prompt.rpartition("\n")
    assert first.question == question.removeprefix("Question: ")
    assert first.text() == text.removesuffix(f"\n\n{QA.splitlines()[0]}\n").rstrip()
