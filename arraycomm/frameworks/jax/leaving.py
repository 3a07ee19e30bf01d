"""The end of the process: JAX waits for programs under way, which need their groups, and groups are closed at the end as well."""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from arraycomm.core.group.group import Group

from . import effect
from .errors import errors

_groups: weakref.WeakSet[Group] = weakref.WeakSet()  # of compiled programs
_settled = False  # no program is under way


def watch(group: Group) -> None:
    """From now on the group's programs end before the group is closed."""
    _groups.add(group)
    atexit.unregister(_settle)
    atexit.register(_settle)  # behind the group's own, so it runs first


def _settle() -> None:
    """Unless the process ends by an exception: the group reports it to the peers, which do not wait for these programs."""
    global _settled
    if hasattr(sys, "ps1") or not hasattr(sys, "last_type"):  # interactively the last exception may be of long ago
        try:
            with errors():
                effect.settle()
            _settled = True
        finally:
            if not _settled:
                effect.forget_failed()


def _abandon() -> None:
    """Programs whose peers do not come would wait, and JAX for them, for ever."""
    for group in () if _settled else list(_groups):
        group.abort("the process ends")


os.register_at_fork(after_in_child=_groups.clear)  # they are the parent's
atexit.register(_abandon)  # before groups are there, and behind JAX's: it runs after the ones and before the other
