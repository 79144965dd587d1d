"""A shipment's chunks: whatever the sizes and whatever is missing, exactly the missing bytes are read and sent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.agent import chunks
from remote_payload.agent.inflow import Inflow

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=5)


def files_of(lengths: list[int]) -> list[dict[str, object]]:
    return [{"path": f"f{at}", "size": length} for at, length in enumerate(lengths)]


@given(lengths=sizes, size=st.integers(1, 17), wanted=st.sets(st.integers(0, 200)))
def test_spans_of_any_chunks_cover_their_bytes_and_no_others(lengths: list[int], size: int, wanted: set[int]) -> None:
    cut = chunks.cut(files_of(lengths), size)
    assert sum(chunk.size for chunk in cut) == sum(lengths) and all(0 < chunk.size <= size for chunk in cut)
    assert [chunk.number for chunk in cut] == list(range(len(cut)))
    missing = sorted(number for number in wanted if number < len(cut))
    assert list(chunks.from_ranges(chunks.to_ranges(missing), len(cut))) == missing
    spans = chunks.spans(cut, missing)
    assert all(before[1] < behind[0] for before, behind in pairwise(spans)), "ascending, apart"
    starts = [0, *[sum(lengths[: at + 1]) for at in range(len(lengths))]]
    expected = {
        starts[int(cut[number].path[1:])] + cut[number].at + byte
        for number in missing
        for byte in range(cut[number].size)
    }
    assert {byte for start, stop in spans for byte in range(start, stop)} == expected


@given(data=st.lists(st.binary(max_size=300), min_size=1, max_size=6), pieces=st.lists(st.integers(1, 90), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(data: list[bytes], pieces: list[int]) -> None:
    stream = b""
    for number, content in enumerate(data):
        before, behind = chunks.frame(number, [memoryview(content[:7]), memoryview(content[7:])])
        stream += before + content + behind

    def cut() -> Iterator[bytes]:
        at = turn = 0
        while at < len(stream):
            yield stream[at : at + pieces[turn % len(pieces)]]
            at, turn = at + pieces[turn % len(pieces)], turn + 1

    found = [(number, bytes(view)) for number, view, _ in chunks.Frames(Inflow(cut()).into)]
    assert found == list(enumerate(data))


@given(st.lists(st.lists(st.integers(-3, 12), min_size=2, max_size=2), max_size=4))
def test_ranges_from_the_wire_name_chunks_of_the_shipment_or_are_refused(runs: list[list[int]]) -> None:
    if all(0 <= first <= last < 9 for first, last in runs):
        assert all(0 <= number < 9 for number in chunks.from_ranges(runs, 9))
    else:
        with pytest.raises(ValueError, match="of 9"):
            list(chunks.from_ranges(runs, 9))
