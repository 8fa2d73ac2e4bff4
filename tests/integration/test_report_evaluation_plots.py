import random
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from memagent.evaluation.stats import mean
from pipelines.report.panels import darkened
from pipelines.report.plots import (
    PUBLISHED,
    PUBLISHED_LABEL,
    PUBLISHED_LENGTHS,
    accuracy_by_depth,
    accuracy_by_length,
    cost_by_length,
    memory_by_share,
    reliability,
    tokens_label,
)

LENGTHS = (8_000, 64_000, 512_000)


def readings(methods=("memagent", "bm25"), seed=1):
    rng = random.Random(seed)
    return [
        {
            "method": method,
            "length": length,
            "depth": rng.random(),
            "score": float(rng.random() < 0.8),
            "tokens": length * 1.2 if method == "memagent" else 6000,
            "seconds": length / 4000 if method == "memagent" else 1.5,
        }
        for method in methods
        for length in LENGTHS
        for _ in range(12)
    ]


def memories():
    rng = random.Random(2)
    return [{"share": rng.random(), "tokens": rng.randint(0, 64)} for _ in range(200)]


def labels(path):
    """The texts of an SVG, which is well-formed."""
    root = ET.fromstring(path.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def sure():
    rng = random.Random(3)
    return [{"confidence": (value := rng.random()), "score": float(rng.random() < value)} for _ in range(100)]


CASES = {
    "reliability": (
        reliability,
        [*sure(), {"confidence": None, "score": 0.0}],
        ["measured", "as a probability", "Confidence (%)", "Right answers (%)"],
    ),
    "accuracy-by-length": (
        accuracy_by_length,
        readings(),
        ["memagent", "bm25", PUBLISHED_LABEL, *PUBLISHED, "measured, 95% interval", "Right answers (%)", "100K", "3M"],
    ),
    "accuracy-by-depth": (
        accuracy_by_depth,
        readings(["memagent"]),
        ["memagent", "8K", "64K", "512K", "0%", "100%", "Depth of the fact", "Right answers (%)"],
    ),
    "cost-by-length": (
        cost_by_length,
        readings(),
        ["memagent", "bm25", "slope 1 (linear)", "Tokens of a reading", "Engine seconds of a reading", "10K", "100K"],
    ),
    "memory-by-share": (
        memory_by_share,
        memories(),
        ["median", "middle half", "Tokens of the memory", "Read so far (% of the text)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_picture_is_made_labelled_and_the_same_each_time(tmp_path, name):
    draw, rows, expected = CASES[name]
    paths = draw(rows, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == [f"{name}.svg", f"{name}.png"]
    assert set(expected) <= set(labels(paths[0]))
    with Image.open(paths[1]) as image:
        assert image.format == "PNG" and image.width == 800
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20
    again = draw(rows, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


@pytest.mark.parametrize("name", CASES)
def test_on_a_dark_page_nothing_is_black_on_black_or_has_a_white_ground(tmp_path, name):
    draw, rows, _ = CASES[name]
    svg, _ = draw(rows, tmp_path)
    dark = darkened(svg.read_text())
    assert "#000000" not in dark and 'style="fill: #ffffff"' not in dark and "stroke: #ffffff" not in dark
    assert "text{fill: #e4e8ed}" in dark
    (tmp_path / "dark.svg").write_text(dark)
    assert labels(tmp_path / "dark.svg") == labels(svg)


def test_published_curves_may_stay_away(tmp_path):
    svg, _ = accuracy_by_length(readings(), tmp_path, published=False)
    assert PUBLISHED_LABEL not in labels(svg) and not set(PUBLISHED) & set(labels(svg))
    assert all(len(values) <= len(PUBLISHED_LENGTHS) for values in PUBLISHED.values())
    assert all(0 <= value <= 100 for values in PUBLISHED.values() for value in values)


def test_accuracy_is_the_mean_with_its_interval(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "pipelines.report.plots.mean", lambda metric, values: seen.append(values) or mean(metric, values)
    )
    rows = readings(["memagent"])
    accuracy_by_length(rows, tmp_path)
    assert seen == [[row["score"] for row in rows if row["length"] == length] for length in LENGTHS]


def test_cells_of_the_heat_map_say_what_was_measured(tmp_path):
    rows = [
        {"method": "m", "length": 8000, "depth": depth, "score": score}
        for depth, score in [(0.0, 1.0), (0.05, 0.0), (0.05, 0.0), (1.0, 0.64), (None, 0.17)]
    ]
    svg, _ = accuracy_by_depth(rows, tmp_path)
    assert {"33", "64"} <= set(labels(svg)) and "17" not in labels(svg)


@pytest.mark.parametrize("name", ["_hidden", "$x^2$ <b>&", "a\x00b\x1b[31m", "𝔐emory 記憶"])
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_names_are_shown_as_they_are(tmp_path, name):
    rows = readings([name])
    for draw in (accuracy_by_length, accuracy_by_depth, cost_by_length):
        svg, _ = draw(rows, tmp_path)
        shown = [label for label in labels(svg) if label and label in name.replace("\x00", "").replace("\x1b", "")]
        assert max(map(len, shown)) >= len(name) - 2


def test_one_reading_is_enough(tmp_path):
    row = readings(["memagent"])[:1]
    for draw in (accuracy_by_length, accuracy_by_depth, cost_by_length):
        assert all(path.stat().st_size for path in draw(row, tmp_path))
    svg, _ = accuracy_by_length(row, tmp_path, published=False)
    assert "10K" in labels(svg)
    assert memory_by_share([{"share": 1, "tokens": 0}], tmp_path)


def test_failed_readings_count_as_wrong_and_have_no_cost(tmp_path):
    failed = {"method": "memagent", "length": 8000, "depth": 0.5, "score": 0.0, "tokens": None, "seconds": None}
    rows = readings(["memagent"])
    for draw, same in ((cost_by_length, True), (accuracy_by_length, False)):
        without, beside = draw(rows, tmp_path / "without"), draw([*rows, failed], tmp_path / "beside")
        assert [a.read_bytes() == b.read_bytes() for a, b in zip(without, beside, strict=True)] == [same, same]


def test_lengths_are_written_short():
    assert [tokens_label(value) for value in (0.5, 30, 8000, 524_288, 1_750_000)] == [
        "0.5",
        "30",
        "8K",
        "524K",
        "1.75M",
    ]
