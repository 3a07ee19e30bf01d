"""What errors say of calls that differ."""

from __future__ import annotations

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


def test_shapes_of_as_many_elements_are_said_to_differ() -> None:
    text = told("all_reduce", (6, shapes.layout((2, 3))), (6, shapes.layout((3, 2))))
    assert "(the shapes or the counts differ); all ranks must call the same" in text
    assert "differ" not in told("all_reduce", (6, shapes.layout((2, 3))), (8, shapes.layout((2, 4))))  # the counts show that


def test_a_rank_that_still_writes_is_named() -> None:
    failure = ffi.new("acomm_failure *", {"code": lib.ACOMM_LOST, "culprit": 1, "text": b"it went"})
    translator = Translator(0, range(SIZE), "world", lambda rank: f"pid {100 + rank}")
    assert "still write" not in str(translator.failure(failure))
    failure.writer = 1 + 2
    assert "rank 2 (pid 102) may still write to this rank's arrays" in str(translator.failure(failure))


def test_counts_are_no_shape() -> None:
    text = told("all_gather", (6, shapes.layout((2, 3), [2, 1, 1])), (6, shapes.layout((2, 3), [2, 2, 1])))
    assert "(the shapes or the counts differ)" in text


CODES = [getattr(lib, name) for name in ("ACOMM_LOST", "ACOMM_TIMEOUT", "ACOMM_MISMATCH", "ACOMM_TRUNCATED", "ACOMM_RESOURCE",
                                         "ACOMM_SYSTEM", "ACOMM_PROTOCOL", "ACOMM_UNSUPPORTED")]


@pytest.mark.parametrize("text", [b"", b"a frame that is not one", b"its array could not be reached"])
@pytest.mark.parametrize("code", CODES)
def test_the_rank_that_was_at_fault_is_named(code: int, text: bytes) -> None:
    failure = ffi.new("acomm_failure *", {"code": code, "culprit": 2, "text": text})
    assert "rank 2 (pid 102)" in str(Translator(0, range(SIZE), "world", lambda rank: f"pid {100 + rank}").failure(failure))


def test_bytes_that_no_rank_sends() -> None:
    failure = ffi.new("acomm_failure *", {"code": lib.ACOMM_PROTOCOL, "culprit": 1, "text": b"a frame that is not one"})
    text = str(Translator(0, range(SIZE), "world", lambda rank: "").failure(failure))
    assert text.endswith("rank 1 broke the wire protocol (a frame that is not one)")
    failure.culprit = -1
    assert "a rank broke the wire protocol" in str(Translator(0, range(SIZE), "world", lambda rank: "").failure(failure))
