"""The short form of `make fuzz`: the same inputs each time."""

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import TARGETS

_INPUTS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_from_outside_are_an_error_of_ours_or_a_result(name: str) -> None:
    assert fuzz(TARGETS[name], _INPUTS, derandomize=True) >= _INPUTS
