"""Conditions on answers, as the command line has them."""

import pytest

from memagent.errors import UsageError
from pipelines.io.answers import parse, passing

ROW = {"document": "Lease [2].pdf", "found": True, "answer": "a=b<c", "confidence": 0.75}


@pytest.mark.parametrize(
    ("items", "passes"),
    [
        ([], True),
        (["document=lease*"], True),
        (["document=lease [2].pdf", "found=true"], True),
        (["document=lease [12].pdf"], False),
        (["answer=a=b<c"], True),
        (["confidence<0.8"], True),
        (["confidence < .8", "confidence>0.7"], True),
        (["confidence>0.75"], False),
        (["confidence<0.75"], False),
        (["confidence<1e-3"], False),
    ],
)
def test_all_conditions_must_hold(items, passes):
    assert passing(parse(items))(ROW) is passes
    assert not passing(parse(["confidence<1"]))({**ROW, "confidence": None}), "what is not known passes nothing"
    assert not passing(parse(["confidence>0"]))({**ROW, "confidence": None})


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        ("document", "field=pattern"),
        ("size=1", "one of document, title"),
        ("confidence=0.8", "as in 'confidence<0.8'"),
        ("confidence<high", "as in 'confidence<0.8'"),
        ("found=maybe", "found=maybe: one of true, false"),
        ("review=acepted", "one of open, accepted, "),
        ("confidence_level=hihg", "one of low, medium, high, none"),
        ("confidence<", "as in 'confidence<0.8'"),
    ],
)
def test_what_is_none_is_refused_with_advice(item, advice):
    with pytest.raises(UsageError, match=advice):
        passing(parse([item]))


@pytest.mark.parametrize(
    ("item", "reviews"),
    [("review=open", [""]), ("review=", [""]), ("review=*ed", ["accepted"]), ("review=*", ["", "accepted"])],
)
def test_what_nobody_has_reviewed_is_open(item, reviews):
    assert [review for review in ("", "accepted") if passing(parse([item]))({"review": review})] == reviews
