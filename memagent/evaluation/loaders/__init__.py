"""Public evaluation files, read into samples: one module for each format, recognised by shape."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from memagent.errors import UsageError
from memagent.evaluation.contracts import contract_samples
from memagent.evaluation.loaders import hotpot, public
from memagent.evaluation.texts import Sample
from memagent.questions import PARQUET, FileRow, json_rows, parquet_rows
from memagent.registry import Registry


class FileFormat(NamedTuple):
    """A format of evaluation files."""

    fields: frozenset[str]
    """Of a record; a file is recognised by them."""
    read: Callable[[Path, Iterable[FileRow]], Iterator[Sample]]
    """Yields the samples of a file's records. What is wrong with one it says by `FileRow.wrong`."""
    fits: Callable[[Collection[str]], bool] = lambda _: False
    """Whether it reads records with these fields, where they are hardly of another format."""


FORMATS: Registry[FileFormat] = Registry(
    "memagent.formats",
    "format",
    {
        "ruler": FileFormat(frozenset({"index", "input", "outputs", "length"}), public.read_ruler),
        "memagent": FileFormat(frozenset({"context", "input", "answers", "index"}), public.read_memagent),
        "longbench": FileFormat(
            frozenset({"input", "context", "answers", "length", "dataset", "_id"}), public.read_longbench
        ),
        "hotpot": FileFormat(frozenset({"_id", "question", "answer", "context", "supporting_facts"}), hotpot.read),
        "squad": FileFormat(frozenset({"data"}), public.read_squad),
        **{name: FileFormat(frozenset(fields.split()), read) for name, fields, read in public.LONG_TEXTS},
        "own": "memagent.evaluation.records:OWN",
    },
    fits=lambda member: isinstance(member, FileFormat) and bool(member.fields),
)
"""Of evaluation files. ``cuad``, a folder, is beside them."""
NAMES = (*FORMATS.built_in, "cuad")
_SURE = 0.75
"""Share of a format's fields from which on a record is of it though its columns could be a user's own."""
_SUFFIXES = (".json", ".jsonl", ".ndjson", *PARQUET)


def load_samples(
    path: str | Path,
    *,
    format: str | None = None,
    passages: str | Path | None = None,
    documents: int | None = None,
    seed: int = 0,
) -> Iterator[Sample]:
    """Read a public evaluation file (or CUAD's folder) into samples, in the order of the file.

    Args:
        path: JSON lines, a JSON list, a JSON document or Parquet; a folder with gold.jsonl and contracts/ for CUAD.
        format: one of `NAMES`, or of another package; else it is recognised by the fields of the first record.
        passages: JSON lines with title and text, to grow HotpotQA's questions with.
        documents: paragraphs that each HotpotQA question is grown to.
        seed: of HotpotQA's paragraphs and their order.

    Of CUAD's contracts only those held out of training are read (`memagent.evaluation.contracts`).
    JSON lines are read one by one, while the samples are taken; what is wrong with a record is raised there.
    Ids differ within a file: a suite of several puts its own name before them.

    Raises:
        UsageError: the format is not known or recognised, or the file is malformed: names file, line (or index in a
            JSON list) and field.
    """
    path = Path(path)
    if format is not None and format != "cuad" and format not in FORMATS:
        raise UsageError(f"{FORMATS.unknown(format)}. Beside them: cuad, a folder")
    if documents is not None and documents < 1:
        raise UsageError(f"{documents} documents: give 1 or more.")
    if format == "cuad" or (format is None and path.is_dir()):
        _no_growth(passages, documents, "cuad")
        return contract_samples(path)
    rows = parquet_rows(path) if path.suffix.lower() in PARQUET else json_rows(path)
    first = next(rows)
    known = format or recognise(first)
    everything = chain([first], rows)
    if known == "hotpot":
        return hotpot.read(path, everything, Path(passages) if passages else None, documents=documents, seed=seed)
    _no_growth(passages, documents, known)
    return FORMATS[known].read(path, everything)


def data_files(path: Path) -> list[Path]:
    """Return the evaluation files below a folder, by name; of a file, or CUAD's folder, itself."""
    if not path.is_dir() or (path / "gold.jsonl").exists():
        return [path]
    files = (file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
    return sorted(file for file in files if not file.name.startswith((".", "dataset_info"))) or [path]


def recognise(row: FileRow) -> str:
    """Return the format that a record has most of the fields of, more than half; else, users' own columns.

    Other packages' formats are looked at only where the record has not all fields of one that is built in.

    Raises:
        UsageError: there is none, or what another package brings cannot be imported.
    """
    shares: dict[str, float] = {}
    for names in (FORMATS.built_in, FORMATS):
        fields = {name: FORMATS[name].fields for name in names if name not in shares}
        shares |= {name: len(own & row.values.keys()) / len(own) for name, own in fields.items()}
        best = max(shares, key=lambda name: shares[name])
        if shares[best] == 1.0:
            return best
    if shares[best] < _SURE:
        own = next((name for name, format in FORMATS.items() if format.fits(row.values)), "")
        if own:
            return own
    if shares[best] <= 0.5:
        known = "; ".join(f"{name}: {', '.join(sorted(format.fields))}" for name, format in FORMATS.items())
        raise UsageError(
            f"{row.where}: fields {', '.join(row.values) or '(none)'} are of no known format. Known are {known}. "
            "A package adds another (docs/extending.md)"
        )
    return best


def _no_growth(passages: str | Path | None, documents: int | None, name: str) -> None:
    if passages is not None or documents is not None:
        raise UsageError(f"Passages and documents grow HotpotQA's questions; this is {name}. Leave them out.")
