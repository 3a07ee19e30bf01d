"""What others wrote, in errors."""

from __future__ import annotations

import numpy as np
import pytest

import arraycomm
from arraycomm.core.base.errors import PeerLost
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.gathering import MEET, Gathering
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.bootstrap.store.table import BAD_REQUEST, failure

HOSTILE = "\x1b]0;owned\x07\r\nCRITICAL forged\x9b31m\u202e"


@pytest.mark.parametrize("text", ["", "host a, pid 7", "größer als 日本"])
def test_plain_text_stays(text: str) -> None:
    assert printable(text) == printable(text.encode()) == text


def test_control_characters_are_escaped() -> None:
    assert printable(HOSTILE) == printable(HOSTILE.encode()) == r"\x1b]0;owned\x07\r\nCRITICAL forged\x9b31m\u202e"
    assert printable(b"\xff\n") == r"\xff\n"


def test_errors_of_a_store_and_of_other_ranks() -> None:
    assert str(failure(BAD_REQUEST, [HOSTILE.encode()])).isprintable()
    store = HashStore()
    Gathering(store, 1, 2).bury(1, HOSTILE, HOSTILE)
    with pytest.raises(PeerLost) as found:
        Gathering(store, 0, 2).wait(MEET, 5)
    assert str(found.value).isprintable() and "owned" in str(found.value)


def test_text_that_is_no_utf8() -> None:
    """As Python has bytes of files and arguments in text."""
    odd = "caf\udce9 \ud800"
    with arraycomm.init(rank=0, world_size=1, store=HashStore()) as group:
        assert group.subgroup([0], odd).all_reduce(np.ones(1)).tolist() == [1]
        fields = np.zeros(2, [(odd, "i4")])
        assert group.broadcast(fields).dtype == fields.dtype
        group.abort(odd)
        with pytest.raises(arraycomm.Aborted, match=r"caf\\udce9 \\ud800"):
            group.barrier()
