"""Public evaluation files, read into samples: one module for each format, recognised by shape."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from memagent.errors import UsageError
from memagent.registry import Registry
from memagent.tasks.loaders import hotpot, longbench, memagent, ruler, squad
from memagent.tasks.loaders.jsonl import Row, read_rows
from memagent.tasks.sample import Sample

FileFormat = tuple[frozenset[str], Callable[[Path, Iterable[Row]], Iterator[Sample]]]
"""The fields of a record, by which a file is recognised, and what reads it."""

FORMATS: Registry[FileFormat] = Registry(
    "memagent.formats",
    "format",
    {
        "ruler": (ruler.FIELDS, ruler.read),
        "memagent": (memagent.FIELDS, memagent.read),
        "longbench": (longbench.FIELDS, longbench.read),
        "hotpot": (hotpot.FIELDS, hotpot.read),
        "squad": (squad.FIELDS, squad.read),
    },
)
"""Of evaluation files. ``cuad``, a folder, is beside them."""
NAMES = (*FORMATS, "cuad")


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
        path: JSON lines, a JSON list or a JSON document; a folder with gold.jsonl and contracts/ for CUAD.
        format: one of `NAMES`; else it is recognised by the fields of the first record.
        passages: JSON lines with title and text, to grow HotpotQA's questions with.
        documents: paragraphs that each HotpotQA question is grown to.
        seed: of HotpotQA's paragraphs and their order.

    Of CUAD's contracts only those held out of training are read (`memagent.tasks.contract_suite`).
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
        # The suite reads its folder with this package.
        from memagent.tasks.contract_suite import contract_samples

        return contract_samples(path)
    rows = read_rows(path)
    first = next(rows)
    known = format or recognise(first)
    everything = chain([first], rows)
    if known == "hotpot":
        return hotpot.read(path, everything, Path(passages) if passages else None, documents, seed)
    _no_growth(passages, documents, known)
    return FORMATS[known][1](path, everything)


def recognise(row: Row) -> str:
    """Return the format that a record has most of the fields of, more than half.

    Raises:
        UsageError: there is none.
    """
    shares = {name: len(fields & row.values.keys()) / len(fields) for name, (fields, _) in FORMATS.items()}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] <= 0.5:
        known = "; ".join(f"{name}: {', '.join(sorted(fields))}" for name, (fields, _) in FORMATS.items())
        raise UsageError(
            f"{row.where}: fields {', '.join(row.values) or '(none)'} are of no known format. Known are {known}. "
            "Give the format by name."
        )
    return best


def _no_growth(passages: str | Path | None, documents: int | None, name: str) -> None:
    if passages is not None or documents is not None:
        raise UsageError(f"Passages and documents grow HotpotQA's questions; this is {name}. Leave them out.")
