"""The tokenizer of memagent-nano: byte-level BPE, digits one by one, eight control tokens."""

from collections.abc import Iterable

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

CONTROL = (
    "<|end|>",
    "<|segment|>",
    "<|question|>",
    "<|memory|>",
    "<|update|>",
    "<|answer|>",
    "<|same|>",
    "<|none|>",
    "<|pad|>",
)
"""Control tokens in the order of their ids; the first ends every response."""

# Digits one by one: every number is then copied in the same few tokens, each of them seen often.
_SPLIT = r"\d| ?\p{L}+| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+"


def train_vocabulary(texts: Iterable[str], size: int = 3072) -> HFTokenizer:
    """Train the tokenizer on `texts`; any Unicode text survives encoding and decoding."""
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
