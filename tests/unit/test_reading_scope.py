"""What a reader declares that it was trained to answer, and the checks of its answers."""

import asyncio
import json
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.errors import ConfigError
from memagent.evaluation import contracts, needles
from memagent.nano import VERSIONS, bundled
from memagent.reading.conversations import ReadingSpec
from memagent.reading.loop import read
from memagent.reading.scope import SCOPE_FILE, check_answer, confused, features, load_scope
from memagent.reading.scripted import ScriptedEngine
from memagent.records import Evidence, Question
from pipelines.ask import outside_scope
from pipelines.views.visible_answers import reader_warnings

SCOPE = load_scope(bundled("rl"))
KEYS = ("amber-otter", "gate-7", "550e8400-e29b-41d4-a716-446655440000")


def quoted(*quotes):
    return [Evidence("h", 0, 0, 100, quote, 0, len(quote)) for quote in quotes]


@pytest.mark.parametrize("version", VERSIONS)
def test_nano_knows_every_wording_that_it_was_trained_on(version):
    scope = load_scope(bundled(version))
    for number, kind in enumerate(needles.KINDS):
        for wording in (*needles.QUESTIONS[kind], *needles.REWORDED[kind]):
            for key in KEYS:
                assert scope.kind(wording.format(key=key)) in scope.kinds[: len(needles.KINDS)], wording
        assert scope.kinds[number].name == f"{kind} of a key"
    for category in contracts.CATEGORIES:
        for wording in (*contracts.QUESTIONS[category], *contracts.REWORDED[category]):
            assert scope.kind(wording).name == category.lower(), wording
            assert scope.kind(wording.upper()) == scope.kind(wording.rstrip("?.")) == scope.kind(wording)
    assert (bundled(version) / SCOPE_FILE).stat().st_size < 100_000


@pytest.mark.parametrize(
    "question",
    [
        *("Who is buying the boats?", "How long is the warranty on the pumps?", "What does the caterer charge?"),
        *("May the tenant keep a dog?", "Why was the bridge closed?", "Translate the first paragraph.", "?", ""),
        *("Quel est le montant du loyer ?", "契約の当事者は誰ですか", "When does the guarantee run out?"),
        *(
            "On which date does the contract renew?",
            "Who are the parties of this contract?",
            "What is the order number?",
        ),
        *("What is the term of this agreement?", "On which date did the board approve the contract?"),
    ],
)
def test_other_questions_are_outside(question):
    assert SCOPE.outside([question, question, "What is the number for gate-7?"]) == [question]
    checked = check_answer(SCOPE, question, "4829104", quoted("It is 4829104."), 0.9999)
    assert (checked.taken, checked.level, checked.warnings) == (True, "low", ("outside what nano was trained for",))
    assert check_answer(None, question, "4829104", quoted("It is 4829104."), 0.9999).warnings == ()


def test_levels_follow_the_bands_of_a_kind():
    question, kind = "What is the governing law?", SCOPE.kind("What is the governing law?")
    assert 0 < kind.low_below < kind.high_from < 1
    levels = [SCOPE.level(question, sure) for sure in (0, kind.low_below - 1e-6, kind.low_below, kind.high_from, 1)]
    assert levels == ["low", "low", "medium", "high", "high"]
    assert SCOPE.level("Which law governs this agreement?", 1.0) == "high"
    assert SCOPE.unmeasured().level(question, 1.0) is None, "of other weights nothing is known"
    rates = [SCOPE.levels[level] for level in ("low", "medium", "high")]
    assert all(a.high < b.low for a, b in pairwise(rates)), "levels tell answers apart"


@pytest.mark.parametrize(
    ("question", "answer", "said"),
    [
        ("When was the agreement made?", "SPONSORSHIP AGREEMENT", "agreement date"),
        ("When was the agreement made?", "May 8, 2014", ""),
        ("When was the agreement made?", "", ""),
        ("Find the number of amber-otter.", "the harbour", "number of a key"),
        ("Which law governs this agreement?", "Delaware", ""),
    ],
)
def test_an_answer_that_has_not_the_form_of_its_kind_is_low_and_marked(question, answer, said):
    checked = check_answer(SCOPE, question, answer, quoted("It is so."), 0.9999)
    assert checked.warnings == ((f"it does not look like an answer to this kind of question: {said}",) if said else ())
    assert (checked.level == "low") == bool(said) and checked.taken


@pytest.mark.parametrize(
    ("question", "answer", "said"),
    [
        ("What is the access code of cedar-gate?", "998877", True),
        ("What is the access code of cedar-gate?", "9998887", False),
        ("What is the access code of cedar-gate?", "", False),
        ("Which law governs this agreement?", "the State of Texas", False),
    ],
)
def test_a_number_that_no_quote_says_is_low_and_marked(question, answer, said):
    text = "The access code of cedar-gate is 9998887; the laws of Texas govern."
    evidence = [replace(quoted(text)[0], verbatim=answer in text)] if answer else []
    checked = check_answer(SCOPE, question, answer, evidence, 0.9999)
    assert checked.warnings == (("no quote has this number or date as it stands here",) if said else ())
    assert (checked.level == "low") == said and checked.taken


@pytest.mark.parametrize("places", [0, 1])
def test_an_answer_without_a_quote_is_low_and_marked(places):
    evidence = [replace(one, quote="", verbatim=False) for one in quoted("a text")[:places]]
    checked = check_answer(SCOPE, "Which law governs this agreement?", "Britishateateate", evidence, 0.9999)
    assert (checked.level, checked.warnings) == ("low", ("no sentence of the text says this, or supports it",))
    assert not check_answer(None, "Which law governs this agreement?", "", [], None).warnings


@pytest.mark.parametrize(
    ("question", "quote", "found"),
    [
        ("What is the code of bay-3?", "The code of bay-4 is 11.", [("bay-3", "bay-4")]),
        ("What is the code of bay-3?", "The code of BAY\u20113 is 11, that of bay-4 is 12.", []),
        ("What is the code of bay-3?", "The code of bay-33 is 11.", [("bay-3", "bay-33")]),
        ("What is the code of bay-3?", "The code of hill-4 is 11.", []),
        ("What is due on INV2024?", "INV2025 is due in May.", [("INV2024", "INV2025")]),
        ("What does section 12 say?", "Section 14 says so.", [("section 12", "Section 14")]),
        ("What happened in 1999?", "It closed in 2001.", []),
        ("Who keeps olive-heron?", "Ben keeps olive-falcon.", [("olive-heron", "olive-falcon")]),
        ("Who are well-known Welsh-speakers?", "The best-known is a Welsh-speaker.", [("well-known", "best-known")]),
        ("What is the code of bay-3?", "The code is 11.", []),
        ("What is the code?", "The code of bay-4 is 11.", []),
        ("什么是 bay-3 的代码？", "bay-4 的代码是 11。", [("bay-3", "bay-4")]),
    ],
)
def test_a_quote_that_names_something_called_almost_the_same(question, quote, found):
    assert list(confused(question, quote)) == found


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_question(question, quote):
    assert SCOPE.kind(question) in (None, *SCOPE.kinds)
    assert sum(value * value for value in features(question).values()) == pytest.approx(1)
    assert not list(confused(question, question)), "a quote that repeats the question names all of it"
    assert check_answer(SCOPE, question, "x", quoted(quote), None).level is None


def test_an_answer_on_something_else_is_not_found_where_that_was_measured():
    question, text = "What is the access code of bay-3?", "The access code of bay-4 is 4829104."
    checked = check_answer(SCOPE, question, "4829104", quoted(text), 0.9999)
    assert not checked.taken and checked.level == "low"
    assert checked.warnings == ("'4829104' was not taken as the answer: its quote names bay-4, not bay-3",)
    for scope in (None, SCOPE.unmeasured()):
        checked = check_answer(scope, question, "4829104", quoted(text), 0.9999)
        assert checked.taken and checked.warnings == ("the quote names bay-4, not bay-3",)


def test_a_reading_ends_with_what_was_checked():
    spec = ReadingSpec.load("nano")
    engine = ScriptedEngine(spec.prompts)
    text = "The access code of the red gate bay-4 is 4829104."

    def answer(question, scope):
        return asyncio.run(read(text, question, engine.generate, replace(spec, scope=scope)))

    asked = "What is the access code of the red gate bay-3?"
    own = answer(asked, None)
    assert (own.found, own.warnings, own.confidence_level) == (True, ("the quote names bay-4, not bay-3",), None)
    checked = answer(asked, spec.scope)
    assert (checked.found, checked.answer, checked.evidence) == (False, "", []) and checked.confidence_level == "low"
    assert own.answer in checked.warnings[0] and checked.conversations == own.conversations
    right = answer(asked.replace("3", "4"), spec.scope)
    assert (right.answer, right.warnings, right.confidence_level) == (own.answer, (), "high")


@pytest.mark.parametrize(("kind", "declares"), [("vllm", True), ("scripted", False), ("openai", False)])
def test_a_declaration_is_of_the_folders_own_model_alone(tmp_path, monkeypatch, kind, declares):
    monkeypatch.setattr("infra.engines.openai.listed_weights", lambda config, served: "")
    config = load_config(store=str(tmp_path), engine__kind=kind, engine__model="nano")
    assert (ReaderSpec(config).scheme.scope is not None) == declares, "a server has a model of its own"


def test_other_questions_are_said_before_a_run(caplog):
    reader = SimpleNamespace(scheme=SimpleNamespace(scope=SCOPE))
    known, other = Question("a", "What is the governing law?"), Question("b", "Who feeds the horses?")
    assert outside_scope(reader, [known, other]) == {"outside_scope": [other.text]}
    assert "nano was not trained for 1 of 2 questions" in caplog.text and other.text in caplog.text
    caplog.clear()
    assert outside_scope(reader, [known]) == {} and not caplog.records
    reader.scheme.scope = None
    assert outside_scope(reader, [other]) == {} and not caplog.records, "a model of one's own is never marked"


@pytest.mark.parametrize(("status", "shown"), [("accepted", []), ("corrected", []), ("rejected", [SCOPE.mark])])
def test_what_people_have_settled_is_not_warned_of(status, shown):
    assert reader_warnings([SCOPE.mark], status) == shown
    assert reader_warnings([SCOPE.mark], None) == [SCOPE.mark] and reader_warnings(None, None) == []


@pytest.mark.parametrize("damage", ["{", '{"reader": 1}', "half"])
def test_a_declaration_that_cannot_be_used_is_an_error(tmp_path, damage):
    assert load_scope(tmp_path) is None
    text = (bundled("rl") / SCOPE_FILE).read_text()
    folder = tmp_path / "model"
    folder.mkdir()
    values = json.loads(text)
    values["weights"] = values["weights"][:400]
    (folder / SCOPE_FILE).write_text(json.dumps(values) if damage == "half" else damage)
    with pytest.raises(ConfigError, match=r"scope\.json"):
        load_scope(folder)


def test_dots_without_an_end_cost_no_more_than_other_text():
    began = time.process_time()
    for what in (".", "/", "a.", "-_"):
        assert features(what * 20_000) is not None
    assert time.process_time() - began < 15
