"""Suites: the samples of an evaluation."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.evaluation.contracts import contract_samples
from memagent.evaluation.controls import CONTROLS, Control, control, reword
from memagent.evaluation.loaders import FORMATS, data_files, load_samples
from memagent.evaluation.ruler import KINDS, DraftRequest, find_kind, make_samples
from memagent.evaluation.ruler.kinds import FAMILIES
from memagent.evaluation.ruler.qa import load_questions, question_kind
from memagent.evaluation.texts import Sample
from memagent.reading.tokens import Tokenizer
from memagent.records import stable_hash, text_hash

SuiteName = Literal["needles", "ruler", "contracts", "files"]
SUITES: tuple[SuiteName, ...] = get_args(SuiteName)

_VERSION = 1
"""Version of the generators.

Their samples never change within a version, so scores of different days are comparable.
"""
_NEEDLES = tuple(name for name, kind in KINDS.items() if kind.family == "needles")
_QUESTIONS = tuple(name for name, kind in KINDS.items() if kind.family == "documents")


@dataclass(frozen=True, slots=True)
class Suite:
    """What to evaluate on.

    - ``needles``, ``ruler``: made texts, `n` of each of `kinds` at each of `lengths`; RULER's question kinds take
      questions and paragraphs from `data`, as many as there are up to `n`. Kinds of other packages belong to ``ruler``
      where `kinds` names them.
    - ``contracts``: the held-out contracts of the CUAD folder in `data`; `kinds` are its categories.
    - ``files``: files in public formats, `data`; each of `lengths` is a number of documents for HotpotQA's questions.
    """

    name: SuiteName
    kinds: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    n: int = 100
    seed: int = 0
    data: tuple[str, ...] = ()
    passages: str | None = None
    control: Control | None = None
    reworded: bool = False
    """Ask in wordings that no supervised training of the bundled reader has; what has none is left out."""

    @property
    def is_made(self) -> bool:
        """Whether its texts are made, with needles in the texts that are given."""
        return self.name in ("needles", "ruler")

    @property
    def _known(self) -> tuple[str, ...]:
        return _NEEDLES if self.name == "needles" else tuple(KINDS)

    @property
    def _brought(self) -> tuple[str, ...]:
        """Those of `kinds` from other packages."""
        others = [kind for kind in self.kinds if kind not in KINDS]
        return tuple(kind for kind in others if self.name == "ruler" and FAMILIES.origin(kind))

    def check(self) -> None:
        """Refuse what does not fit together.

        Raises:
            UsageError: it says what to give.
        """
        if self.name not in SUITES:
            raise UsageError(f"no suite {self.name!r}. There are: {', '.join(SUITES)}.")
        if self.is_made:
            if not self.lengths:
                raise UsageError(f"suite {self.name} wants lengths in tokens: --lengths 8k,32k")
            if wrong := [kind for kind in self.kinds if kind not in self._known + self._brought]:
                raise UsageError(f"no kind {wrong[0]!r} in suite {self.name}. There are: {', '.join(self._known)}.")
            for kind in self._brought:
                FAMILIES.find(kind)  # raises where it cannot be imported
            if self.data and self.name == "needles":
                raise UsageError("suite needles takes no --data: the texts that hide needles are given by --text")
            given = [question_kind(Path(path)) for path in self.data]
            if len(set(given)) < len(given):
                raise UsageError("give one file of questions for each kind: two --data are of the same format")
            if wrong := [kind for kind in self.kinds if kind in _QUESTIONS and kind not in given]:
                raise UsageError(f"{wrong[0]} wants questions: --data FILE, like SQuAD's for qa_1, HotpotQA's for qa_2")
        elif not self.data:
            wanted = "FOLDER (of CUAD)" if self.name == "contracts" else f"FILE, of the formats {', '.join(FORMATS)}"
            raise UsageError(f"suite {self.name} wants --data {wanted}")
        if self.control is not None and self.control not in CONTROLS:
            raise UsageError(f"no control {self.control!r}. There are: {', '.join(CONTROLS)}.")

    def groups(self) -> list["SampleGroup"]:
        """Return what can be made side by side, the longest texts first."""
        if self.name == "contracts":
            return [SampleGroup(self, data=self.data[0])]
        if self.name == "files":
            files = [str(file) for path in self.data for file in data_files(Path(path))]
            return [SampleGroup(self, data=file, length=size) for file in files for size in self.lengths or (0,)]
        asked = [(question_kind(Path(path)), path) for path in self.data]
        sources = [(kind, "") for kind in self._known + self._brought if kind not in _QUESTIONS] + asked
        chosen = [(kind, path) for kind, path in sources if not self.kinds or kind in self.kinds]
        lengths = sorted(self.lengths, reverse=True)
        return [SampleGroup(self, kind, length, path) for length in lengths for kind, path in chosen]

    def corpus(self, tokenizer: Tokenizer, texts: Sequence[str]) -> str:
        """Name the corpus that the samples' texts stand in: more samples of the same making join it."""
        paths = [*self.data, self.passages] if self.passages else [*self.data]
        parts: list[object] = [_VERSION, [_contents(Path(path)) for path in paths]]
        if self.is_made:
            parts += [tokenizer.fingerprint, [text_hash(text) for text in texts]]
            parts += [FAMILIES.origin(kind) for kind in self._brought]  # another version may make other samples
        else:  # a question that is grown takes its passages by the seed
            parts.append(self.seed)
        return f"eval-{self.name}-{stable_hash(*parts)[:10]}"

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data; an option that came later is there only where it is used."""
        return {name: value for name, value in asdict(self).items() if value or name != "reworded"}


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples of one kind and length."""

    suite: Suite
    kind: str = ""
    length: int = 0
    data: str = ""

    def samples(self, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Sample]:
        """Yield the group's samples; texts are made as they are read."""
        suite = self.suite
        samples = self._plain(tokenizer, texts)
        samples = reword(samples, suite.seed) if suite.reworded else samples
        return control(samples, suite.control, suite.seed) if suite.control else samples

    def _plain(self, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Sample]:
        suite = self.suite
        if suite.name == "contracts":
            return contract_samples(self.data, suite.kinds or None, suite.n)
        if suite.name == "files":
            grown = {"documents": self.length, "passages": suite.passages} if self.length else {}
            read = islice(load_samples(self.data, seed=suite.seed, **grown), suite.n)  # type: ignore[arg-type]
            folder = next(
                (path for path in suite.data if Path(path) in Path(self.data).parents), Path(self.data).parent
            )
            name = Path(self.data).relative_to(folder).with_suffix("").as_posix()
            size = f"-{self.length}d" if self.length else ""
            traced = (replace(s, origins=s.origins or (text_hash(s.text()),)) for s in read)
            return (replace(s, sample_id=f"{name}{size}-{s.sample_id}", length=s.length or self.length) for s in traced)
        asked, pool = load_questions(Path(self.data)) if self.data else ([], [])
        n = min(suite.n, len(asked)) if self.data else suite.n
        kind = find_kind(self.kind)
        request = DraftRequest(kind, self.length, tokenizer, texts=texts, paragraphs=pool, questions=asked)
        return make_samples(request, n, seed=suite.seed)


def _contents(path: Path) -> list[tuple[str, str]]:
    """Return name and hash of a file, or of every file of a folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        return [(file.name, _hash(file)) for file in files]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
