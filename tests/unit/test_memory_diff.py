from hypothesis import given
from hypothesis import strategies as st

from pipelines.views.memory import difference

_TEXTS = st.text("ab c.\n", max_size=60)


@given(_TEXTS, _TEXTS)
def test_a_difference_gives_back_both_memories(before, after):
    parts = difference(before, after)
    assert "".join(part.text for part in parts if part.kind != "removed") == after
    assert "".join(part.text for part in parts if part.kind != "added") == before or any(
        part.kind == "same" for part in parts
    )


def test_a_memory_is_compared_word_by_word():
    said = difference("the code is 12 and red", "the code is 17 and red, too")
    assert [(part.kind, part.text) for part in said] == [
        ("same", "the code is "),
        ("removed", "12"),
        ("added", "17"),
        ("same", " and red"),
        ("added", ", too"),
    ]
    assert difference("", "") == []


def test_a_long_passage_that_stays_is_clipped_in_its_middle():
    same = " ".join(f"word{i}" for i in range(500))
    before, added = difference(same, f"{same} new")
    assert before.kind == "same" and len(before.text) < 200 and " … " in before.text
    assert before.text.startswith("word0 ") and before.text.endswith("word499")
    assert (added.kind, added.text) == ("added", " new")
