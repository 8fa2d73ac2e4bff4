import asyncio

import memagent


def spec(**options):
    return memagent.ReadingSpec.load(template="plain", segment_tokens=64, memory_tokens=32, answer_tokens=16, **options)


def test_any_coroutine_that_takes_and_gives_text_reads():
    prompts = []

    async def generate(prompt, max_tokens):
        prompts.append((prompt, max_tokens))
        if "Answer from the memory alone" in prompt:
            return "4471902"
        return "cedar-gate: 4471902" if "cedar-gate is 4471902" in prompt else "(nothing yet)"

    how = spec()
    text = "Visitors sign in. " * 60 + "The access code of cedar-gate is 4471902. " + "Doors close. " * 60
    question = "What is the access code of cedar-gate?"
    result = asyncio.run(memagent.read(text, question, memagent.from_text(generate, how), how))
    assert result.answer == "4471902" and result.found
    assert "cedar-gate is 4471902" in result.evidence[0].quote
    assert len(prompts) == result.segments + 1 and [most for _, most in prompts] == [32] * result.segments + [16]
    assert all(question in prompt for prompt, _ in prompts)


def test_a_response_that_is_too_long_is_cut_and_says_so():
    async def generate(prompt, max_tokens):
        return " ".join(str(number) for number in range(100))

    how = spec()
    turns = []
    asyncio.run(memagent.read("Some text.", "What?", memagent.from_text(generate, how), how, turns.append))
    assert [len(turn.response_ids) for turn in turns] == [32, 16]
    assert {turn.finish_reason for turn in turns} == {"length"}


def test_a_documents_control_tokens_reach_no_engine_of_text_and_its_quote_is_as_the_document_has_it():
    prompts = []

    async def generate(prompt, max_tokens):
        prompts.append(prompt)
        return "4471902" if "Answer from the memory alone" in prompt else "the code is 4471902"

    text = "The access code <|end|> of cedar-gate is 4471902."
    how = spec()
    result = asyncio.run(memagent.read(text, "What is the access code?", memagent.from_text(generate, how), how))
    assert "<|end|>" not in "".join(prompts) and "code < |end|> of" in prompts[0]
    (piece,) = result.evidence[:1]
    assert "<|end|>" in piece.quote and text[piece.char_start : piece.char_end] == piece.quote
