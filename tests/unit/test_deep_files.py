"""Files that nest deeper than a parser can go are an error of one line, whatever they are for."""

import pytest

from memagent.config import load_config
from memagent.errors import UsageError
from memagent.questions import load_questions
from memagent.reading.prompts import load_template
from memagent.rl.config import load_recipe

DEEP = "x = " + "[" * 5000 + "]" * 5000 + "\n"


@pytest.mark.parametrize("read", [load_config, load_template, load_questions, load_recipe])
def test_a_file_that_nests_too_deep_is_one_line(tmp_path, read):
    path = tmp_path / "deep.toml"
    path.write_text(DEEP)
    with pytest.raises(UsageError, match=r"deep\.toml: maximum recursion depth"):
        read(str(path))
