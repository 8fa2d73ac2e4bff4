"""Chat templates built like those of the families that are trained, in words of our own."""

import json
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from memagent.nano import bundled

CHATML = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Qwen 2.5 and SmolLM2: a system message of the template's own."""

THINKING = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content|string + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""Qwen 3: it thinks unless told not to."""

HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if messages[0]['role'] == 'system' %}
    {{- messages[0]['content']|trim }}{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content']|trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
"""Llama 3: a date, and a beginning of the text."""

TURNS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
    {%- generation -%}{{ message['content'] | trim }}{%- endgeneration -%}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""
"""Gemma 3: the system message is in the user's."""

INSTRUCTIONS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- raise_exception('Only user and assistant roles are supported') }}{%- endif %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + ' [/INST]' }}
    {%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}"""
"""Mistral: no prompt for a response, and no system message."""

ENDS = """\
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- else %}{{- eos_token }}{%- endif %}"""
"""Phi 3."""

FAMILIES = {
    "qwen2": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3": (THINKING, ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], "<|im_end|>"),
    "llama": (HEADERS, ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "gemma3_text": (TURNS, ["<start_of_turn>", "<end_of_turn>"], "<end_of_turn>"),
    "mistral": (INSTRUCTIONS, ["[INST]", "[/INST]"], "</s>"),
    "phi3": (ENDS, ["<|user|>", "<|assistant|>", "<|end|>"], "<|end|>"),
}
"""Of each family: its template, its control tokens beside ``<s>`` and ``</s>``, and the one that ends a response."""


def tokenizer_folder(folder: Path, family: str, template: str | None = None) -> str:
    """Write a tokenizer as transformers does, without a model; return the folder."""
    source, control, _ = FAMILIES[family]
    tokenizer = HFTokenizer.from_file(str(bundled() / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>", *control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template or source}))
    ends = [tokenizer.token_to_id("</s>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return str(folder)
