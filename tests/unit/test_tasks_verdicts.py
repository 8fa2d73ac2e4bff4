import pytest

from memagent.tasks.verdicts import right


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
