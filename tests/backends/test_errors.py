"""What errors say of calls that differ."""

from __future__ import annotations

import math

import pytest

from arraycomm._engine import ffi, lib
from arraycomm.backends.errors import Translator
from arraycomm.core.group import shapes
from arraycomm.core.interface.kinds import KINDS

SIZE = 3


def told(kind: str, *headers: tuple[int, int]) -> str:
    """headers: (count, layout) of two ranks."""
    failure = ffi.new("acomm_failure *", {"code": lib.ACOMM_MISMATCH, "culprit": 1, "origin": 0})
    for header, (count, layout) in zip((failure.mine, failure.theirs), headers, strict=True):
        header.kind, header.count, header.layout, header.sequence, header.root = KINDS[kind].number, count, layout, 7, -1
    return str(Translator(0, range(SIZE), "world", lambda rank: "").failure(failure))


@pytest.mark.parametrize(("kind", "parts"), [("all_reduce", 1), ("all_gather", 1), ("reduce_scatter", SIZE),
                                             ("all_to_all", SIZE)])
@pytest.mark.parametrize("pair", [((2, 3), (3, 2)), ((6,), (2, 3)), ((4, 1, 6), (24,)), ((3, 2), (3, 4)),
                                  ((1024, 1024, 3), (3, 1024, 1024)), ((16, 3, 224, 224), (16, 224, 224, 3))])
def test_both_shapes_are_named(kind, parts, pair):
    pair = [(parts * shape[0], *shape[1:]) for shape in pair]
    text = told(kind, *((math.prod(shape) // parts, shapes.layout(shape)) for shape in pair))
    assert f"(of shapes {pair[0]} and {pair[1]}); all ranks must call the same" in text


def test_a_rank_that_still_writes_is_named():
    failure = ffi.new("acomm_failure *", {"code": lib.ACOMM_LOST, "culprit": 1, "text": b"it went"})
    translator = Translator(0, range(SIZE), "world", lambda rank: f"pid {100 + rank}")
    assert "still write" not in str(translator.failure(failure))
    failure.writer = 1 + 2
    assert "rank 2 (pid 102) may still write to this rank's arrays" in str(translator.failure(failure))


def test_counts_are_no_shape():
    text = told("all_gather", (6, shapes.layout((2, 3), [2, 1, 1])), (6, shapes.layout((2, 3), [2, 2, 1])))
    assert "(the shapes or the counts differ)" in text


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7,), (1, 1, 1, 1, 6, 1), (1 << 33,)])
def test_a_shape_is_found_by_its_layout(shape):
    assert shapes.with_layout(shapes.layout(shape), math.prod(shape)) == shape


def test_a_search_ends():
    assert shapes.with_layout(2, 720_720) is None  # no layout is even, and there are a million such shapes
    assert shapes.with_layout(shapes.layout((0, 3)), 0) is None


CODES = [getattr(lib, name) for name in ("ACOMM_LOST", "ACOMM_TIMEOUT", "ACOMM_MISMATCH", "ACOMM_TRUNCATED", "ACOMM_RESOURCE",
                                         "ACOMM_SYSTEM", "ACOMM_PROTOCOL", "ACOMM_UNSUPPORTED")]


@pytest.mark.parametrize("text", [b"", b"a frame that is not one", b"its array could not be reached"])
@pytest.mark.parametrize("code", CODES)
def test_the_rank_that_was_at_fault_is_named(code, text):
    failure = ffi.new("acomm_failure *", {"code": code, "culprit": 2, "text": text})
    assert "rank 2 (pid 102)" in str(Translator(0, range(SIZE), "world", lambda rank: f"pid {100 + rank}").failure(failure))


def test_bytes_that_no_rank_sends():
    failure = ffi.new("acomm_failure *", {"code": lib.ACOMM_PROTOCOL, "culprit": 1, "text": b"a frame that is not one"})
    text = str(Translator(0, range(SIZE), "world", lambda rank: "").failure(failure))
    assert text.endswith("rank 1 broke the wire protocol (a frame that is not one)")
    failure.culprit = -1
    assert "a rank broke the wire protocol" in str(Translator(0, range(SIZE), "world", lambda rank: "").failure(failure))
