"""Lanes: spans of a stream that are read side by side (after PI-Mem, arXiv 2608.03048)."""


def spans(segments: int, lanes: int) -> list[range]:
    """Cut `segments` positions into at most `lanes` spans of nearly equal length, in order.

    There is always at least one span, and no span is empty unless the stream is.
    """
    count = max(1, min(lanes, segments))
    size, longer = divmod(segments, count)
    result = []
    start = 0
    for lane in range(count):
        stop = start + size + (lane < longer)
        result.append(range(start, stop))
        start = stop
    return result
