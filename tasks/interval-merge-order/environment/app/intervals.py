"""Half-open intervals [start, end) as pairs of numbers."""


def check(interval):
    start, end = interval
    if end < start:
        raise ValueError(f"{interval} ends before it starts")
    return start, end


def merge(intervals):
    """Return the union as sorted, disjoint intervals; touching ones are joined and empty ones dropped."""
    merged = []
    for start, end in map(check, intervals):
        if start == end:
            continue
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def gaps(intervals, lower, upper):
    """Return what the union leaves uncovered between lower and upper."""
    left = []
    position = lower
    for start, end in merge(intervals):
        if start > position:
            left.append((position, min(start, upper)))
        position = max(position, end)
        if position >= upper:
            return left
    left.append((position, upper))
    return left


def total(intervals):
    return sum(end - start for start, end in merge(intervals))
