"""From an error inside a compiled program to our exception: XLA carries text only, so its text carries a number."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator

import jax

from arraycomm.core.errors import Aborted, DistError
from arraycomm.core.group import Group
from arraycomm.core.types import DeviceType

from . import effect

_KEPT = 64  # exceptions of programs whose results nobody has looked at yet
_kept: dict[int, BaseException] = {}
_numbers = itertools.count(1)
_places: dict[int, str] = {}
FOREIGN = (jax.errors.JaxRuntimeError, ValueError)  # jaxlib raises ValueError where a program was dispatched without Python
_pattern = re.compile(r"arraycomm error (\d+):")


def number(group: Group) -> int:
    """The group's number in compiled programs. TypeError where its backend has no entry points for them."""
    shortcut = group._communicator.shortcut
    # Memory of MPI's failed operations may stay in use, which XLA cannot know.
    if shortcut is None or DeviceType.CPU not in group._movers or "mpi" in group.backend:
        raise TypeError(f"backend {group.backend!r} cannot be called by compiled programs; call it outside jit")
    found = shortcut.number(_report)
    _places[found] = f"rank {group.rank} of {group.size} in group {group.name!r}"
    return found


def _report(group: int, error: BaseException | None) -> str:
    """Called from C when an operation has failed; None: the group was closed before."""
    if error is None:
        error = Aborted(f"{_places[group]}: the group is closed; wait for results (jax.block_until_ready) before close(), or "
                        "make a new one with arraycomm.init() or split() and trace the function again with it")
    kept = next(_numbers)
    _kept[kept] = error
    _kept.pop(kept - _KEPT, None)
    return f"arraycomm error {kept}: {type(error).__name__}: {error}"


def original(error: BaseException) -> BaseException | None:
    """The exception that an error of a compiled program stands for; None where it is not ours."""
    found = _pattern.search(str(error))
    return _kept.get(int(found[1])) if found else None


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Inside, errors of compiled programs are raised as what they are: PeerLost, CollectiveMismatch and the others.

    jax raises JaxRuntimeError or ValueError otherwise, whose text says the same. Errors come where a result is waited for.
    """
    try:
        yield
    except FOREIGN as error:
        raise_original(error)


def raise_original(error: Exception) -> None:
    """Raises the exception that it stands for, or else itself."""
    ours = original(error)
    if ours is None:
        raise error
    if isinstance(ours, DistError):
        effect.forget()  # the failed program's token would fail all later ones, those of other groups too
    raise ours from error
