"""RULER's tasks: the facts stand in texts of the length asked for, and the seed decides."""

import json
import os
import pickle
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

from memagent.errors import UsageError
from memagent.evaluation.loaders import load_samples
from memagent.evaluation.needles import QUESTIONS, SENTENCES
from memagent.evaluation.ruler import KINDS, Asked, DraftRequest, Kind, find_kind, make_samples, write_jsonl
from memagent.evaluation.ruler.haystack import Filler, HaystackTexts, Lines, weave
from memagent.evaluation.ruler.kinds import DrawnNames, Meter, Numbers, Uuids
from memagent.reading.tokens import Tokenizer, load_tokenizer

ESSAYS = [
    " ".join(f"Essay {i} tells of the harbor, in part {j}, at some length. Who asks?" for j in range(30))
    + "\n\n"
    + f"A second part of essay {i} follows here! " * 20
    for i in range(40)
]
PASSAGES = [(f"Town {i}", f"Town {i} lies by a river. " * (1 + i % 7) + f"It has {i} bridges.") for i in range(300)]
ASKED = [
    Asked(
        f"Who built the mill of place {i}?",
        (f"Arno Veld{i}",),
        ((f"Place {i}", f"There is a mill. It was built by Arno Veld{i}, a farmer. It still stands."), ("Mills", "x.")),
    )
    for i in range(20)
]
GIVEN = {"texts": ESSAYS, "paragraphs": PASSAGES, "questions": ASKED}


@pytest.fixture(scope="module")
def nano():
    return load_tokenizer("memagent/nano/sft")


def trained(pre, decoder) -> Tokenizer:
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder
    lines = [*ESSAYS[:5], *(f"{title}\n{text}\n\n" for title, text in PASSAGES[:40])]
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return Tokenizer(tokenizer.to_str())


@pytest.fixture(scope="module")
def others(tokenizer):
    """Tokenizers that join line ends to full stops (as Qwen's), and spaces to words as a mark (as Llama's)."""
    split = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    pre = [
        pre_tokenizers.Split(Regex(split), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    joining = trained(pre_tokenizers.Sequence(pre), decoders.ByteLevel())
    pre = [pre_tokenizers.Split("\n", behavior="isolated"), pre_tokenizers.Metaspace(prepend_scheme="first")]
    marking = trained(pre_tokenizers.Sequence(pre), decoders.Metaspace())
    return [tokenizer, joining, marking]


def make(kind, tokenizer, length=4096, n=1, seed=0, **given):
    kind = kind if isinstance(kind, Kind) else find_kind(kind)
    return list(make_samples(DraftRequest(kind, length, tokenizer, **(GIVEN | given)), n, seed=seed))


def same(a, b):
    return replace(a, pieces=None) == replace(b, pieces=None) and a.text() == b.text()


@pytest.mark.parametrize("kind", KINDS)
def test_facts_stand_in_the_text_in_order_and_hold_the_gold(kind, nano):
    for sample in make(kind, nano, n=6):
        text = sample.text()
        assert text == sample.text() == "".join(sample.pieces())
        assert text == text.strip()
        assert pickle.loads(pickle.dumps(sample)).text() == text
        places = [text.index(fact) for fact in sample.facts]
        assert sample.answers and sample.facts
        assert all(any(answer in fact for fact in sample.facts) for answer in sample.answers)
        assert sample.match == ("part" if kind.startswith("qa") else "all")
        assert sample.task == kind and sample.length == 4096
        if kind in ("cwe", "fwe"):
            assert sample.depth is None
        else:
            assert places == sorted(places)
            depths = sample.about.get("depths", [sample.depth])
            assert sample.depth == depths[0]
            assert all(abs(place / len(text) - depth) < 0.06 for place, depth in zip(places, depths, strict=True))
        json.dumps(sample.about)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [4096, 8192])
def test_texts_are_as_long_as_asked_and_no_longer(kind, length, nano):
    for sample in make(kind, nano, length, n=2, seed=3):
        assert 0.98 * length <= len(nano.encode(sample.text())) <= length


@pytest.mark.parametrize("kind", ["niah_single_1", "niah_multivalue", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1"])
def test_counts_of_pieces_add_up_for_other_tokenizers(kind, others):
    for tokenizer in others:
        for sample in make(kind, tokenizer, 8192):
            assert 0.98 * 8192 <= len(tokenizer.encode(sample.text())) <= 1.002 * 8192


def test_a_long_text_of_needles_is_reckoned_and_stays_within_the_length(nano):
    (sample,) = make("niah_multikey_3", nano, 131_072)
    assert 0.98 * 131_072 <= len(nano.encode(sample.text())) <= 131_072


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2), st.integers(1, 3), st.integers(0, 10**9))
def test_a_sample_is_the_same_whatever_else_is_made(nano, kind, more, n, seed):
    few = make(kind, nano, n=n, seed=seed)
    many = make(kind, nano, n=n + more, seed=seed)
    assert len(few) == n and all(same(a, b) for a, b in zip(few, many, strict=False))
    assert len({sample.sample_id for sample in many}) == n + more
    assert not same(make(kind, nano, seed=seed + 1)[0], many[0])


def test_depths_fill_the_text_evenly_however_many_samples_are_made(nano):
    depths = [sample.depth for sample in make("niah_single_1", nano, 8192, n=80)]
    for n in (10, 40, 80):
        tenths = Counter(int(depth * 10) for depth in depths[:n])
        assert all(n / 10 - 2 <= tenths[tenth] <= n / 10 + 2 for tenth in range(10))
    assert len(set(depths)) == 80


def test_needles_have_the_wording_that_readers_are_trained_on(nano):
    for kind in ("niah_single_1", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"):
        value_kind = KINDS[kind].value_kind
        for sample in make(kind, nano, n=4):
            (fact,), (value,) = sample.facts, sample.answers
            key = next(
                re.fullmatch(re.escape(form).replace(r"\{key\}", "(.+)"), sample.question).group(1)
                for form in QUESTIONS[value_kind]
                if re.fullmatch(re.escape(form).replace(r"\{key\}", "([a-z0-9-]+)"), sample.question)
            )
            assert fact in {form.format(key=key, value=value) for form in SENTENCES[value_kind]}
            assert sample.text().count(value) == 1
            assert len(re.findall(rf"(?<![\w-]){key}(?![\w-])", sample.text())) == 1


def test_several_values_and_several_keys_are_asked_for_at_once(nano):
    (values,) = make("niah_multivalue", nano)
    assert len(set(values.answers)) == 4
    key = re.fullmatch(r"Which numbers belong to (\S+)\? Give all of them\.", values.question).group(1)
    assert all(key in fact for fact in values.facts) and values.text().count(key) == 4
    (queries,) = make("niah_multiquery", nano)
    keys = re.findall(r"[a-z]+-[a-z]+", queries.question)
    assert len(set(keys)) == len(set(queries.answers)) == 4
    (one_of_four,) = make("niah_multikey_1", nano)
    assert len(one_of_four.facts) == 1 and len(re.findall(r"\b\d{7}\b", one_of_four.text())) == 4


def test_every_line_is_a_needle_of_another_key(nano):
    for kind, value in (("niah_multikey_2", r"\d{7}"), ("niah_multikey_3", r"[0-9a-f]{8}-[0-9a-f-]{27}")):
        (sample,) = make(kind, nano, 8192)
        lines = sample.text().split("\n")
        assert len(lines) == len(set(lines)) == sample.about["needles"]
        assert all(re.search(value, line) for line in lines)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 6), st.integers(1, 3))
def test_following_the_assignments_gives_the_names(tokenizer, seed, hops, chains):
    kind = replace(KINDS["vt"], hops=hops, chains=chains)
    (sample,) = make(kind, tokenizer, 3000, seed=seed)
    asked = re.search(r"\d{5}", sample.question).group()
    held: dict[str, str] = {}
    found = re.findall(r"The variable ([A-Z]{5}) is set to (?:the value of )?(\w+)\.", sample.text())
    for name, value in found:
        held[name] = held.get(value, value)
    assert len(found) == len(held) == (hops + 1) * chains
    assert {name for name, value in held.items() if value == asked} == set(sample.answers)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9))
def test_the_common_words_are_the_ten_most_frequent(tokenizer, seed):
    (sample,) = make("cwe", tokenizer, 4096, seed=seed)
    counts = Counter(sample.text().split("\n")).most_common()
    assert {word for word, _ in counts[:10]} == set(sample.answers)
    assert {count for _, count in counts[:10]} == {30} and {count for _, count in counts[10:]} == {3}
    assert len(counts) == sample.about["words"]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2048, 8192]))
def test_ranks_of_coded_words_are_unambiguous_and_follow_the_zeta_distribution(tokenizer, seed, length):
    (sample,) = make("fwe", tokenizer, length, seed=seed)
    counts = Counter(sample.text().split("\n")).most_common()
    assert counts[0][0] == "......"
    assert tuple(word for word, _ in counts[1:4]) == sample.answers
    leading = [count for _, count in counts[:5]]
    assert len(set(leading)) == 5
    assert all(abs(count - leading[0] / rank**2) < 1 for rank, count in enumerate(leading, 1))
    assert all(re.fullmatch(r"[a-z]{6}", word) for word, _ in counts[1:])


def test_own_paragraphs_stand_among_others_that_do_not_tell(nano):
    telling = ("Rumour", "Some say it was arno veld0 who did it.")
    for sample in make("qa_1", nano, 4096, n=3, paragraphs=[telling, *PASSAGES]):
        number = sample.sample_id[-1]
        documents = re.findall(r"Document (\d+):\n(.+)\n(.+)", sample.text())
        assert [int(i) for i, _, _ in documents] == list(range(1, sample.about["documents"] + 1))
        shown = [(title, text) for _, title, text in documents]
        assert all(paragraph in shown for paragraph in ASKED[int(number)].paragraphs)
        assert sample.facts == (f"It was built by Arno Veld{number}, a farmer.",)
        assert sample.text().lower().count(f"arno veld{number}") == 1
        assert not sample.about["repeats"] and len(set(shown)) == len(shown)


def test_questions_grow_to_a_number_of_documents(nano):
    (sample,) = make("qa_2", nano, 0, documents=50)
    assert sample.about["documents"] == 50 == sample.text().count("Document ")
    assert sample.length == 0 and "50d" in sample.sample_id
    orders = [re.findall(r"Town \d+\n", one.text()) for one in make("qa_2", nano, 0, n=2, documents=50)]
    assert orders[0] != orders[1]
    (few,) = make("qa_2", nano, 8192, paragraphs=PASSAGES[:20])
    assert few.about["repeats"]


def test_facts_of_a_question_are_given_or_found(nano):
    paragraphs = (("A", "Ann won in May. Bo came next."), ("B", "Ann is from Rome."))
    given_facts = Asked("Who?", ("yes",), paragraphs, ("Ann is from Rome.",))
    unknown = Asked("Who?", ("yes",), paragraphs)
    found = Asked("Who?", ("ann",), paragraphs)
    asked = [given_facts, unknown, found]
    facts = [set(sample.facts) for sample in make("qa_2", nano, 0, 3, documents=20, questions=asked)]
    assert facts[0] == {"Ann is from Rome."}
    assert facts[1] == {text for _, text in paragraphs}
    assert facts[2] == {"Ann won in May.", "Ann is from Rome."}


@pytest.mark.parametrize(
    ("kind", "length", "given_", "message"),
    [
        ("niah", 2048, {}, "no RULER task 'niah'"),
        ("niah_single_2", 2048, {"texts": ()}, "give texts"),
        ("qa_1", 2048, {"questions": ()}, "needs questions"),
        ("qa_1", 2048, {"paragraphs": ()}, "other paragraphs"),
        ("qa_1", 2048, {"n": 21}, "ask for no more samples"),
        ("qa_1", 2048, {"documents": 50}, "either a length"),
        ("qa_1", 0, {"documents": 1}, "at least as many documents"),
        ("qa_1", 0, {"documents": 5, "paragraphs": [("Mills", "x.")]}, "no paragraph can stand"),
        ("qa_1", 0, {"documents": 5, "questions": [Asked("Who?", ("a",), ())]}, "has no paragraphs"),
        ("qa_1", 0, {"documents": 5, "questions": [Asked("Q?", ("a",), (("A", "B."),), ("C",))]}, "in none of its"),
        ("vt", 2048, {"documents": 50}, "no number of documents"),
        ("vt", 0, {}, "length above 0"),
        *((kind, 8, {}, "ask for a greater length") for kind in KINDS),
    ],
)
def test_what_cannot_be_made_says_why(kind, length, given_, message, nano):
    with pytest.raises(UsageError, match=message):
        make(kind, nano, length, **given_)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab.!? \n", max_size=80), min_size=1, max_size=6).filter(lambda texts: any(map(str.strip, texts))),
    st.data(),
)
def test_any_texts_are_cut_without_losing_a_character(tokenizer, texts, data):
    haystack = HaystackTexts(texts, tokenizer, 10**9)
    whole = "".join("\n\n" + text.strip() for text in texts if text.strip())
    n = len(haystack)
    assert "".join(haystack.run(0, n)) == whole
    assert "".join(haystack.run(0, 2 * n)) == whole * 2
    cut = data.draw(st.integers(0, n))
    assert "".join(haystack.run(0, cut)) + "".join(haystack.run(cut, n)) == whole
    for unit in range(2 * n):
        assert haystack.within(haystack.tokens(unit)) >= unit
        assert haystack.tokens(haystack.within(haystack.tokens(unit))) == haystack.tokens(unit)


def test_long_texts_without_sentence_ends_are_cut_between_words(nano):
    text = "word " * 60_000
    haystack = HaystackTexts([text], nano, 10**9)
    pieces = ["".join(haystack.run(i, i + 1)) for i in range(len(haystack))]
    assert "".join(pieces) == "\n\n" + text.strip()
    assert max(map(len, pieces)) <= 1002 and all(piece.startswith((" word", "\n\nword")) for piece in pieces)
    assert abs(haystack.tokens(len(haystack)) / len(nano.encode(text)) - 1) < 0.001


def test_only_as_many_texts_are_taken_as_are_needed(nano):
    def endless():
        for i in range(10**6):
            taken.append(i)
            yield ESSAYS[i % len(ESSAYS)]

    taken: list[int] = []
    (sample,) = make("niah_single_2", nano, 4096, texts=endless())
    assert len(taken) < 20 and sample.text()


def test_texts_are_made_as_they_are_read(nano):
    (sample,) = make("niah_single_1", nano, 10**9)
    begun = list(islice(sample.pieces(), 5))
    assert sum(map(len, begun)) < 10**6


@settings(deadline=None)
@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(0, 3000), st.text("xyz", min_size=1)), max_size=4))
def test_weaving_keeps_units_and_sentences(tokenizer, count, inserts):
    haystack = Filler(Meter(tokenizer))
    inserts = [(min(place, count), sentence) for place, sentence in inserts]
    text = "".join(weave(haystack, count, inserts))
    assert text == text.strip() and all(sentence in text for _, sentence in inserts)
    plain = "".join(haystack.run(0, count))
    assert len(text) == len(plain) - 1 + sum(len(sentence) + 1 for _, sentence in inserts)


def test_names_numbers_and_uuids_do_not_repeat_and_are_found_by_number():
    names, numbers, uuids = (made(random.Random(4)) for made in (DrawnNames, Numbers, Uuids))
    pairs = len({names(i) for i in range(150_000)})
    assert pairs == 150_000 and names(0).count("-") == 1 and names(149_999).count("-") == 2
    assert len({numbers(i) for i in range(50_000)}) == 50_000
    assert all(re.fullmatch(r"[1-9]\d{6}", numbers(i)) for i in range(100))
    assert len({uuids(i) for i in range(1000)}) == 1000
    assert all(
        re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", uuids(i))
        for i in range(99)
    )


def test_reckoned_lines_agree_with_counted_ones(nano):
    lines = Lines(Meter(nano), lambda i: f"Line {1000 + i} of the list.")
    for unit in (0, 1, 400, 512, 513, 5000):
        assert lines.within(lines.tokens(unit)) in (unit, unit - 1)
    assert abs(lines.tokens(3000) / len(nano.encode("".join(lines.run(0, 3000)))) - 1) < 0.01


def test_files_in_rulers_format_are_read_back_whole(nano, tmp_path):
    made = [sample for kind in KINDS for sample in make(kind, nano, n=2)]
    made.append(replace(made[0], sample_id="odd", pieces=lambda: iter(['Say "\u2028\\n', "\N{GRINNING FACE}\n"])))
    path = tmp_path / "ruler.jsonl"
    assert write_jsonl(made, path) == len(made)
    rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    for index, (row, sample) in enumerate(zip(rows, made, strict=True)):
        assert row["index"] == index and row["outputs"] == list(sample.answers) and row["length"] == sample.length
        assert row["input"] == f"{sample.text()}\n\n{sample.question}"
    assert all(same(a, b) for a, b in zip(load_samples(path), made, strict=True))
    assert os.listdir(tmp_path) == ["ruler.jsonl"]


def test_a_file_is_written_whole_or_not_at_all(nano, tmp_path):
    def broken():
        yield from make("vt", nano)
        raise RuntimeError("the disk is gone")

    path = tmp_path / "ruler.jsonl"
    path.write_text("before")
    with pytest.raises(RuntimeError):
        write_jsonl(broken(), path)
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["ruler.jsonl"]
