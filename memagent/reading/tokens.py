"""Tokenising, with one rule: text from outside never becomes a control token.

Templates are tokenised with their special tokens; documents and questions are tokenised as plain
text, so that a document which contains a model's own tags stays text (prompt injection by tags is
impossible by construction). For engines that take text the tags are broken up (`Tokenizer.as_prompt`).
"""

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from memagent.errors import ConfigError
from memagent.records import Json, stable_hash


class Tokenizer:
    """A Hugging Face fast tokenizer behind the calls that a reading needs."""

    def __init__(self, spec: str, ends: Sequence[int] = ()) -> None:
        """Build from the content of a ``tokenizer.json``; `ends` are the ids that end a response of the model."""
        self.ends = tuple(ends)
        self._literal = HFTokenizer.from_str(spec)
        self._literal.no_truncation()
        self._literal.no_padding()
        self._plain = HFTokenizer.from_str(_with_all_special(spec))
        self._plain.no_truncation()
        self._plain.no_padding()
        self._plain.encode_special_tokens = True
        tokens = {number: token.content for number, token in self._literal.get_added_tokens_decoder().items()}
        # Blanks are no control tokens, and a token of one character stands for that character.
        self._control = {number for number, content in tokens.items() if len(content.strip()) > 1}
        spellings = sorted((tokens[number] for number in self._control), key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")
        self.fingerprint = stable_hash(json.loads(spec))
        self.vocab_size = self._literal.get_vocab_size()

    def literal(self, text: str) -> list[int]:
        """Tokenise template text; special tokens are recognised."""
        return list(self._literal.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Tokenise text from outside; added tokens in it, special or not, are plain characters."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokenise text from outside; also return each token's (start, end) in characters."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def decode(self, ids: list[int], *, special: bool = False) -> str:
        """Return the text of `ids`; control tokens are left out unless `special`."""
        return str(self._literal.decode(ids, skip_special_tokens=not special))

    def as_prompt(self, ids: list[int]) -> str:
        """Return a prompt as text for an engine that tokenises it itself.

        There, a control token that a document spells would become one. A blank after its first character keeps it text
        (``< |end|>``); tokenizers' normalisation may take out a character of no width. Only the prompt has the blank,
        so places in documents stay as they are.
        """
        checked: list[int] = []
        for is_control, run in groupby(ids, self._control.__contains__):
            part = list(run)
            text = "" if is_control else self.decode(part, special=True)
            safe = text
            while self._spelling.search(safe):  # again: of what is broken up, the rest may be the spelling of another
                safe = self._spelling.sub(lambda found: f"{found[0][0]} {found[0][1:]}", safe)
            checked += part if safe == text else self.encode(safe)
        return self.decode(checked, special=True)

    def id(self, token: str) -> int | None:
        """Return the id of one token, or None."""
        token_id: int | None = self._literal.token_to_id(token)
        return token_id


def _with_all_special(spec: str) -> str:
    """Return a ``tokenizer.json`` in which every added token counts as special, and so can be kept out of a text.

    Models add control tokens that are not special, such as ``</think>`` and ``<tool_call>``. Runs of blanks stay.
    """
    record = json.loads(spec)
    for token in record.get("added_tokens", []):
        token["special"] = token["special"] or bool(token["content"].strip())
    return json.dumps(record)


def tokenizer_file(model: str) -> Path:
    """Return the ``tokenizer.json`` of a model folder or of a Hugging Face name.

    Raises:
        ConfigError: there is none.
    """
    if not Path(model).is_dir() and not _is_hub_name(model):
        raise ConfigError(
            f"no model at {model!r}. Give a folder with a model in Hugging Face format, "
            "or a Hugging Face name such as Qwen/Qwen2.5-7B-Instruct."
        )
    path = model_file(model, "tokenizer.json")
    if path is None:
        raise ConfigError(
            f"{model} has no tokenizer.json. Save the model with its fast tokenizer "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
        )
    return path


def model_file(model: str, name: str) -> Path | None:
    """Return a file of a model folder or of a Hugging Face name; None if it has no such file.

    Raises:
        ConfigError: the hub does not say whether there is one: without it, prompts would silently be other ones.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if not _is_hub_name(model):
        return None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name))
    except Exception as error:  # the hub raises its own and its HTTP client's errors
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        raise ConfigError(
            f"cannot fetch {name} of {model!r} from the Hugging Face hub ({type(error).__name__}). Check the name, the "
            "network and HF_TOKEN, or download the model and give its folder with --model."
        ) from error


def _is_hub_name(model: str) -> bool:
    return not model.startswith((".", "/", "~")) and model.count("/") == 1


def model_json(model: str, name: str) -> Json:
    """Return the content of a JSON file of a model (`model_file`); nothing if it has no such file.

    Raises:
        ConfigError: it is no JSON object.
    """
    file = model_file(model, name)
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file else {}
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file} is no JSON object: {error}") from error


def _ends(model: str) -> list[int]:
    """Return the ids that end a response by the model's ``generation_config.json``."""
    found = model_json(model, "generation_config.json").get("eos_token_id")
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, int)]


def load_tokenizer(model: str) -> Tokenizer:
    """Load the tokenizer of a model folder or of a Hugging Face name.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    path = tokenizer_file(model)
    try:
        return Tokenizer(path.read_text(encoding="utf-8"), _ends(model))
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises no class of its own
        raise ConfigError(f"{path} cannot be used ({error}): save the model with its fast tokenizer again") from error
