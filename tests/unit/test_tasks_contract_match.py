import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.evaluation.contract_match import durations, parse_date, parties, right, says_yes
from memagent.evaluation.contracts import ENTITIES, YES_NO


@pytest.mark.parametrize(
    ("category", "prediction", "gold", "verdict"),
    [
        ("Agreement Date", "May 8, 2014", "5/8/14", True),
        ("Agreement Date", "8th day of May 2014", "5/8/14", True),
        ("Agreement Date", "this 1st day of October, 1999", "10/1/99", True),
        ("Agreement Date", "May 2014", "5/8/14", False),
        ("Agreement Date", "8 May 2015", "5/8/14", False),
        ("Agreement Date", "soon", "5/8/14", False),
        ("Agreement Date", "", "", True),
        ("Agreement Date", "May 8, 2014", "", False),
        ("Agreement Date", "", "5/8/14", False),
        ("Governing Law", "the State of New York", "New York", True),
        ("Governing Law", "York", "New York", False),
        ("Governing Law", "Province of Ontario", "Ontario, Canada", True),
        ("Governing Law", "England and Wales", "England, United Kingdom; Wales, United Kingdom", True),
        ("Governing Law", "laws", "Nevada", False),
        ("Governing Law", "", "Nevada", False),
        ("Document Name", "This Marketing Affiliate Agreement", "MARKETING AFFILIATE AGREEMENT", True),
        ("Document Name", "AGREEMENT", "MARKETING AFFILIATE AGREEMENT", False),
    ],
)
def test_verdicts(category, prediction, gold, verdict):
    assert right(category, prediction, gold) is verdict


@pytest.mark.parametrize(
    ("category", "prediction", "gold", "verdict"),
    [
        ("Effective Date", "2014-05-08", "5/8/14", True),
        ("Effective Date", "Oct. 1, 1999", "10/1/99", True),
        ("Effective Date", "21s t day of February 2011", "2/21/11", True),
        ("Effective Date", "January 31, 2025", "31/01/2025", True),
        ("Effective Date", "9/1/45", "September 1, 2045", True),
        ("Effective Date", "May 8, 2014 or May 9, 2014", "5/8/14", False),
        ("Effective Date", "September 1, 2006 and August 31, 2007", "09/01/2006; 8/31/2007", True),
        ("Effective Date", "August 31, 2007", "09/01/2006; 8/31/2007", True),
        ("Effective Date", "the ____ day of ____________2015", "[]/[]/2015", True),
        ("Effective Date", "March __, 2014", "[]/[]/2015", False),
        ("Effective Date", "March __, 2018", "03/[]/2018", True),
        ("Effective Date", "April __, 2018", "03/[]/2018", False),
        ("Effective Date", "April 30", "04/30/[]", True),
        ("Effective Date", "", "[]/[]/[]", True),
        ("Effective Date", "____ day of ____ 20__", "[]/[]/20[]", True),
        ("Effective Date", "May 8, 2014", "[]/[]/[]", False),
        ("Expiration Date", "The term is perpetual.", "Perpetual", True),
        ("Expiration Date", "in perpetuity", "09/05/2019; perpetual", True),
        ("Expiration Date", "September 5, 2019", "09/05/2019; perpetual", True),
        ("Expiration Date", "September 5, 2019", "perpetual", False),
        ("Expiration Date", "five years", "9/5/19", False),
        ("Renewal Term", "two (2) years", "2 years", True),
        ("Renewal Term", "24 months", "2 years", True),
        ("Renewal Term", "successive one-year terms", "successive 1 year", True),
        ("Renewal Term", "1 year, unless notice is given 60 days before", "successive 1 year", True),
        ("Renewal Term", "annually", "1 year", True),
        ("Renewal Term", "four years and six months", "4 years, 6 months", True),
        ("Renewal Term", "four years", "4 years, 6 months", False),
        ("Renewal Term", "6 months", "0.5 year", True),
        ("Renewal Term", "10 years", "10 successive 1 year", False),
        ("Renewal Term", "one year", "10 successive 1 year", True),
        ("Renewal Term", "perpetually", "perpetual, 11/15/2014", True),
        ("Renewal Term", "1 year", "perpetual", False),
        ("Renewal Term", "1 year", "", False),
        ("Notice Period To Terminate Renewal", "sixty (60) days prior", "60) days", True),
        ("Notice Period To Terminate Renewal", "180 days", "180 days / 6 months", True),
        ("Notice Period To Terminate Renewal", "six months", "180 days / 6 months", True),
        ("Notice Period To Terminate Renewal", "6 months", "180 days", False),
        ("Notice Period To Terminate Renewal", "one hundred and eighty days", "180 days", True),
        ("Notice Period To Terminate Renewal", "60 business days", "60 days", False),
        ("Notice Period To Terminate Renewal", "one year unless notice is given 60 days before", "60 days", True),
        ("Notice Period To Terminate Renewal", "", "[]", True),
        ("Notice Period To Terminate Renewal", "30 days", "[]", False),
        ("Governing Law", "laws of the State of New York", "New York", True),
        ("Governing Law", "N.Y.", "New York", True),
        ("Governing Law", "NY", "New York", True),
        ("Governing Law", "laws of England and Wales", "England", True),
        ("Governing Law", "England", "England and Wales, UK", True),
        ("Governing Law", "English law", "England", True),
        ("Governing Law", "People\u2019s Republic of China", "China", True),
        ("Governing Law", "PRC", "People's Republic of China", True),
        ("Governing Law", "West Virginia", "Virginia", False),
        ("Governing Law", "West Virginia", "West Virginia", True),
        ("Governing Law", "Washington, D.C.", "Washington", False),
        ("Governing Law", "Washington, D.C.", "District of Columbia", True),
        ("Governing Law", "Washington", "Washington", True),
        ("Governing Law", "THE LAWS IN FORCE IN OHIO OR TEXAS", "Indiana", False),
        ("Governing Law", "New York", "Illinois; New York", True),
        ("Governing Law", "", "[* * *]", True),
        ("Parties", "Kubient, Inc. and The Associated Press", 'Kubient, Inc. ("K"); The Associated Press ("C")', True),
        ("Parties", "Kubient", 'Kubient, Inc. ("K"); The Associated Press ("C")', False),
        ("Parties", "ACME CORPORATION; Foo L.L.C.", 'Acme Corp. ("A"); Foo, LLC ("B")("a Party")', True),
        ("Parties", "Rise (Tianjin) Education Co.", 'Rise (Tianjin) Education Co., Ltd. ("S")', True),
        ("Document Name", "AGENTS' CERTIFICATE", "AGENTS\u2019 CERTIFICATE", True),
        ("Document Name", "Order 5, Amendment No. 1", "AMENDMENT NO. 1\n\nORDER 5", True),
        ("Document Name", "Amendment No. 1", "AMENDMENT NO. 1\n\nORDER 5", False),
        ("Audit Rights", "Yes", "Yes", True),
        ("Audit Rights", "Yes, the buyer may, at no cost", "Yes", True),
        ("Audit Rights", "No.", "Yes", False),
        ("Audit Rights", "", "No", True),
        ("Audit Rights", "", "Yes", False),
        ("Audit Rights", "There is no such clause", "No", True),
        ("Audit Rights", "perhaps", "No", False),
        ("Audit Rights", "perhaps", "Yes", False),
        ("Warranty Duration", "12 months", "Yes", True),
        ("Warranty Duration", "12 months", "No", False),
    ],
)
def test_verdicts_of_every_kind(category, prediction, gold, verdict):
    assert right(category, prediction, gold) is verdict


def test_an_unknown_category_is_refused():
    with pytest.raises(ValueError, match="Color"):
        right("Color", "red", "red")


def test_parts():
    assert durations("two (2) years, then 30 days; one hundred twenty-five days") == [(24, 0), (0, 30), (0, 125)]
    assert durations("nothing") == []
    assert parties('Ash, Inc. and Birch, LLC ("X"); Oak Ltd d/b/a Elm; each a "Party"') == ["ash", "birch", "oak"]
    assert says_yes("Insurance", "yes and no") is True
    assert says_yes("Insurance", "it says yes and no") is None
    assert parse_date("May 8, 14").year == 2014


some = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [
                "5/8/14",
                "[]/[]/2015",
                "May",
                "2014",
                "two",
                "(2)",
                "years",
                "N.Y.",
                "Inc.",
                '("A")',
                ";",
                "(",
                "yes",
                "no",
            ]
        ),
        max_size=8,
    ).map(" ".join),
)


@given(st.sampled_from(ENTITIES + YES_NO), some, some)
@settings(deadline=None)
def test_a_verdict_is_a_verdict_whatever_is_said(category, prediction, gold):
    assert right(category, prediction, gold) in (True, False)
    assert right(category, f" {prediction}\n", gold) == right(category, prediction, gold)


@given(st.sampled_from(ENTITIES), st.text(min_size=1).filter(lambda text: any(c.isalnum() for c in text)))
@settings(deadline=None)
def test_blank_gold_has_one_answer_and_gold_itself_is_right(category, text):
    assert right(category, "", "")
    assert not right(category, text, "")
    assert not right(category, "", text)
    assert right(category, text, text)
