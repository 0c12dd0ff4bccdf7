"""Busy and free periods of a day, in minutes since midnight."""

from intervals import gaps, merge, total


def busy(meetings):
    return merge((meeting["start"], meeting["end"]) for meeting in meetings)


def free(meetings, opens=9 * 60, closes=17 * 60):
    return gaps(((meeting["start"], meeting["end"]) for meeting in meetings), opens, closes)


def load(meetings):
    """Busy minutes; minutes with several meetings count once."""
    return total((meeting["start"], meeting["end"]) for meeting in meetings)
