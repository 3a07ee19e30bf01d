"""Where groups that merge come together: in rounds of a store, each of which ends for all its groups by one word.

A round is over when its groups are all that are wanted, or when one of them gives up. Whoever comes first to say so says it for
all (compare_set), and that is what the others wait for: a group that is left goes on to the next round at once, where the one
that gave up will come when it tries again. So groups that are in their calls at the same time meet, whatever happened before.
"""

from __future__ import annotations

import time
from datetime import timedelta

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.gathering import agreed, signed
from arraycomm.core.bootstrap.store import Store

_WHOLE, _OVER = b"whole", b"over"


def join(store: Store, size: int, mine: int, seconds: float, secret: bytes | None) -> tuple[int, int]:
    """By the first rank of a group of `mine` ranks: (the round, how many ranks of other groups stand before these). secret: the
    job's, which signs what ends a round.

    Where the second and `mine` are more than `size` the ranks that came before leave too little room: the round is over then.
    Raises DistStoreError when not all have come in time, AuthFailed where somebody else ended the round.
    """
    rounds, end = f"merge/rounds of {size}", time.monotonic() + seconds
    while True:
        number = store.add(rounds, 0)
        key = f"merge/{number} of {size}"
        come = store.add(f"{key}/ranks", mine)
        before = come - mine
        try:
            word = _word(store, key, before, come, size, end, secret)
        finally:  # whatever comes of it, nobody new has a place there
            store.compare_set(rounds, str(number), str(number + 1))
        if word == _WHOLE or before < size < come:
            return number, before


def _word(store: Store, key: str, before: int, come: int, size: int, end: float, secret: bytes | None) -> bytes:
    """What ends the round."""
    about = f"the end of {key}"

    def say(word: bytes) -> bytes:
        return agreed(store, f"{key}/said", secret, about, word)

    if before >= size:  # it has been complete, or over, before
        return _OVER
    if come >= size:
        return say(_WHOLE if come == size else _OVER)
    try:
        return signed(secret, about, store.get_within(f"{key}/said", timedelta(seconds=max(end - time.monotonic(), 0.001))))
    except BaseException as error:  # this group gives up
        word = say(_OVER)
        if not isinstance(error, DistStoreError):
            raise
        if word == _WHOLE:  # the last one came meanwhile, and counts on it
            return word
        come = store.add(f"{key}/ranks", 0)
        raise DistStoreError(f"merge_remote_group: {come} of {size} ranks have come in time") from error
