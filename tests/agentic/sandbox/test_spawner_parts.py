"""The spawner's pure parts: frames cut anywhere, output without end."""

from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.local.spawner import wire
from agentic.sandbox.local.spawner.output import Capture

FRAMES = st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=200)), max_size=5)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_being_cut_anywhere(frames: list[tuple[dict[str, int], bytes]], cuts: list[int]) -> None:
    data = b"".join(wire.encode(header, body) for header, body in frames)
    decoder, decoded, position, turn = wire.Decoder(), [], 0, 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        decoded += decoder.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    assert decoded == frames


@given(st.lists(st.binary(max_size=300)), st.integers(2, 400))
def test_capture_keeps_both_ends_and_never_more_than_its_limit(chunks: list[bytes], limit: int) -> None:
    capture, data = Capture(limit), b"".join(chunks)
    for chunk in chunks:
        capture.feed(chunk)
    value = capture.value()
    if len(data) <= limit:
        assert (value, capture.is_truncated) == (data, False)
    else:
        head, tail = data[: limit - limit // 2], data[len(data) - limit // 2 :]
        assert value == head + b"\n[... %d bytes left out ...]\n" % (len(data) - limit) + tail
        assert capture.is_truncated
