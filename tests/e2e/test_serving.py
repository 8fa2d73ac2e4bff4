"""`memagent serve` with the bundled reader: OpenAI's client asks long texts and a corpus."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.conftest import needle_archive
from tests.support.ports import first_port
from tests.support.serving import serving


def test_the_bundled_reader_answers_openais_client(tmp_path: Path, memagent) -> None:
    questions = needle_archive(tmp_path / "docs", documents=4, sentences=120)
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    memagent("ingest", "docs", str(tmp_path / "docs"))
    with serving(tmp_path, memagent.store, first_port(31_500, 400)) as endpoint:
        client = endpoint.client()

        def ask(row: dict) -> tuple[str, int]:
            text = (tmp_path / "docs" / row["documents"][0]).read_text()
            answer = client.chat.completions.create(
                model="memagent",
                messages=[{"role": "user", "content": f"<document>{text}</document>\n{row['question']}"}],
            )
            (place,) = answer.memagent["answers"][0]["evidence"][:1]  # type: ignore[attr-defined]
            assert text[place["quote_start"] : place["quote_end"]] == place["quote"]
            return answer.choices[0].message.content, answer.usage.prompt_tokens

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ask, rows))
        right = [row["answers"][0] in said for row, (said, _) in zip(rows, answers, strict=True)]
        assert sum(right) >= 3, answers
        assert all(tokens > 500 for _, tokens in answers)
        row = rows[0]
        kept = client.chat.completions.create(
            model="corpus:docs", messages=[{"role": "user", "content": row["question"]}]
        )
        named = {answer["document"]: answer["answer"] for answer in kept.memagent["answers"]}  # type: ignore[attr-defined]
        assert row["answers"][0] in named[row["documents"][0]] and kept.memagent["readings"] == 4  # type: ignore[attr-defined]
        known = memagent("answers", "docs", "--format", "jsonl", "--run", kept.memagent["run_id"]).splitlines()  # type: ignore[attr-defined]
        assert len(known) == 4, "a run like any other"
        for model, more in (("memagent", {"document": "Lunch is at noon. " * 20}), ("archive:docs", {})):
            asked = [{"role": "user", "content": "Who painted the gate, and why?"}]
            given = client.chat.completions.create(model=model, messages=asked, extra_body=more)
            said = given.choices[0].message.content
            assert said == "not found [outside what nano was trained for]"
            assert given.memagent["warnings"] == ["outside what nano was trained for"]  # type: ignore[attr-defined]
