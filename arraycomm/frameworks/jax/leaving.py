"""Process exit: JAX waits for running programs, which need their groups, so the groups must be closed after that."""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from arraycomm.core.group.group import Group

from . import effect
from .errors import errors

_groups: weakref.WeakSet[Group] = weakref.WeakSet()  # groups in compiled programs
_settled = False  # True: no program is running


def watch(group: Group) -> None:
    """Ensures that the group's programs end before the group is closed."""
    _groups.add(group)
    atexit.unregister(_settle)
    atexit.register(_settle)  # registered after the group's handler, so it runs before it


def _settle() -> None:
    """Waits for the programs; not if the process ends by an exception, which the group reports to the peers."""
    global _settled
    if hasattr(sys, "ps1") or not hasattr(sys, "last_type"):  # in an interactive session the last exception may be old
        try:
            with errors():
                effect.settle()
            _settled = True
        finally:
            if not _settled:
                effect.forget_failed()


def _abandon() -> None:
    """Aborts the groups: programs whose peers never arrive, and JAX with them, would wait forever."""
    for group in () if _settled else list(_groups):
        group.abort("the process ends")


os.register_at_fork(after_in_child=_groups.clear)  # they are the parent's
atexit.register(_abandon)  # registered after JAX's handler and before the groups': it runs after the groups' and before JAX's
