"""Inputs made of good ones: bytes changed, cut, repeated, spliced, and words put in that parsers stumble over."""

from collections.abc import Sequence

from hypothesis import strategies as st

WORDS = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n", b"\n\n", b"\x1b[31m", b"\xe2\x80\xa8"),
    *(b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"<", b">", b"&", b",", b";", b"=", b"#", b"|", b"%", b"--"),
    *(b"-1", b"0", b"1e999", b"NaN", b"9" * 40, b"null", b"true", b"\\ud800", b"\\u0000", b"<!ENTITY x '&x;'>"),
    *(b"{" * 300, b"[" * 300, b"(" * 300, b" " * 2000, b"<div>" * 200, b"{\\rtf1", b"%PDF-1.7", b"PK\x03\x04", b"PAR1"),
)
_MOST = 1 << 16


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of `seeds` with up to eight changes."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, min(64, len(data) - at)))
        match draw(st.sampled_from(("set", "cut", "repeat", "word", "splice", "random", "end"))):
            case "set" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + length]
            case "repeat":
                data[at:at] = data[at : at + length] * draw(st.integers(1, 8))
            case "word":
                data[at:at] = draw(st.sampled_from(WORDS))
            case "splice":
                other = draw(st.sampled_from(seeds))
                start = draw(st.integers(0, len(other)))
                data[at : at + length] = other[start : start + draw(st.integers(0, 256))]
            case "random":
                data[at : at + length] = draw(st.binary(max_size=16))
            case "end":
                del data[at:]
        del data[_MOST:]
    return bytes(data)
