"""The members of a reconfigure() compare their lists of handles in the store. If the lists of two members differ, both get an
error at once; without this check they would wait for each other until their timeouts.

A list is registered in the store: each caller writes its list under its own key and under the first member's key; the first
member writes it under all keys. So two lists with a common member collide at a key once their first members have arrived, and
every other rank writes only two keys. Entries are signed with the job's secret (gathering.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from arraycomm.core.base.errors import PeerLost
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.gathering import MEET, Gathering, agreed, signed
from arraycomm.core.bootstrap.store import PrefixStore, Store

_SHOWN = 16  # handles of a list that an error shows


class MemberList:
    """The list of one rank that calls reconfigure(). store: private to this uuid. secret: the job's."""

    def __init__(self, store: Store, uuid: int, handles: Sequence[str], mine: str, secret: bytes | None) -> None:
        self._store, self._uuid, self._handles, self._mine, self._secret = store, uuid, list(handles), mine, secret
        text = "\n".join(handles)
        self._name = sha256(text.encode()).hexdigest()[:16]
        self.store = PrefixStore(self._name, store)  # shared by the members with this list
        self._write(f"{self._name}/list", text)

    def meet(self, seconds: float) -> None:
        """Returns when all members have arrived with this list.

        Raises ValueError, which names both lists, if a member has another list, AuthFailed for entries from outside the job,
        DistStoreError and PeerLost as Gathering.wait().
        """
        gathering = self._gathering(self._name, self._handles.index(self._mine), len(self._handles))
        gathering.enter()
        try:
            self._claim()
            gathering.wait(MEET, seconds)
        except BaseException as error:
            gathering.fail(error)
            if isinstance(error, PeerLost) and self.store.check(["other"]):
                raise self._differs(*self._read(f"{self._name}/other").split("\0")) from None
            raise
        finally:
            gathering.leave()

    def _claim(self) -> None:
        claim = f"{self._name}\0{self._mine}"
        for handle in self._handles if self._handles[0] == self._mine else (self._handles[0], self._mine):
            told = self._write(f"claim/{handle}", claim)
            name, who = told.split("\0")
            if name != self._name:
                error = self._differs(name, who)
                for one, other in ((self._name, told), (name, claim)):
                    self._write(f"{one}/other", other)
                self._gathering(name, 0, len(self._list(name))).fail(error)
                raise error

    def _gathering(self, name: str, rank: int, size: int) -> Gathering:
        return Gathering(PrefixStore(f"{name}/gathering", self._store), rank, size, self._secret)

    def _write(self, key: str, text: str) -> str:
        """Writes the text unless the key has a value; returns the key's value."""
        return agreed(self._store, key, self._secret, self._about(key), text.encode()).decode()

    def _read(self, key: str) -> str:
        return signed(self._secret, self._about(key), self._store.get(key)).decode()

    def _about(self, key: str) -> str:
        return f"{key} of reconfigure() with uuid {self._uuid}"

    def _list(self, name: str) -> list[str]:
        return self._read(f"{name}/list").split("\n")

    def _differs(self, name: str, who: str) -> ValueError:
        other = self._list(name)
        pairs = zip(self._handles, other, strict=False)
        place = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(self._handles), len(other)))
        return ValueError(f"reconfigure: members were given different lists of handles for uuid {self._uuid}, which differ from "
                          f"place {place} on: this process ({self._mine}) {_shown(self._handles)}, {printable(who)} "
                          f"{_shown(other)}; give all members the same list in the same order, or a set, and take another uuid")


def _shown(handles: Sequence[str]) -> str:
    more = f", ... ({len(handles)} in all)" if len(handles) > _SHOWN else ""
    return f"[{', '.join(map(printable, handles[:_SHOWN]))}{more}]"
