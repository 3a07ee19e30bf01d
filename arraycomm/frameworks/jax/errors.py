"""Maps an error of a compiled program to the original exception: XLA carries only text, so the text contains a number."""

from __future__ import annotations

import contextlib
import itertools
import re
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from arraycomm._engine import lib
from arraycomm.core.base.errors import Aborted, CollectiveMismatch, CollectiveTimeout, DistError, PeerLost
from arraycomm.core.group.group import Group

from . import effect

_KEPT = 64  # the most kept exceptions of programs whose results have not been read yet
_kept: dict[int, BaseException] = {}
_numbers = itertools.count(1)
_places: dict[int, str] = {}
FOREIGN = (jax.errors.JaxRuntimeError, ValueError)  # jaxlib raises ValueError where a program was dispatched without Python
_pattern = re.compile(r"arraycomm error (\d+):")
# Communicators with operations enqueued since the last check: XLA is not notified of failures after enqueueing.
_movers: weakref.WeakSet[Any] = weakref.WeakSet()


def enqueued(mover: Any) -> None:
    """Called by a program that has enqueued an operation on a communicator with asynchronous errors (NCCL)."""
    if hasattr(mover, "failure"):
        _movers.add(mover)


def check() -> None:
    """Raises the failure of an operation that an ended program had enqueued: that program's results are incomplete."""
    while _movers:
        failure = _movers.pop().failure
        if failure is not None:
            raise failure


def place(number: int, group: Group) -> None:
    """Registers the group of a number, for error texts."""
    _places[number] = f"rank {group.rank} of {group.size} in group {group.name!r}"


def derived(error: BaseException) -> None:
    """Adds a hint to the error of a derivative's operation, if the derivative may be why the ranks call different operations."""
    if isinstance(error, (CollectiveMismatch, CollectiveTimeout, PeerLost)):
        error.args = (f"{error}; this operation belongs to a derivative (grad, vjp, jvp): ranks that do not "
                      "differentiate the same function do not call it", *error.args[1:])


def report(group: int, error: BaseException | None, of_a_derivative: int = 0) -> str:
    """The text of an operation's error, called from C too. None: the group was closed before."""
    if error is None:
        error = Aborted(f"{_places[group]}: the group is closed; wait for results (jax.block_until_ready) before close(), or "
                        "make a new one with arraycomm.init() or split() and trace the function again with it")
    if isinstance(error, CollectiveTimeout):
        error.args = (f"{error}{_oversubscribed()}",)
    if of_a_derivative:
        derived(error)
    kept = next(_numbers)
    _kept[kept] = error
    _kept.pop(kept - _KEPT, None)
    return f"arraycomm error {kept}: {type(error).__name__}: {error}"


def _oversubscribed() -> str:
    """A hint if XLA has too few threads: programs of several Python threads then wait for each other, across the ranks."""
    threads = lib.acomm_xla_threads()
    if threads == 1:
        return (". XLA executes programs in one thread here. While a program waits in an operation, callbacks that read arrays "
                "(jax.debug.callback) and other programs cannot run, here and on peers with one thread. Give XLA two threads "
                "(PJRT_NPROC=2 in the environment of all ranks, before JAX starts)")
    if not 0 < threads <= lib.acomm_xla_waiting():
        return ""
    inside = "; ".join(place for number, place in _places.items() if lib.acomm_xla_inside(number) > 0)
    return (f". All {threads} threads in which XLA executes programs here wait ({inside}). Programs of other Python threads are "
            "not executed, and the peers may wait for these: start programs of several groups in one thread, or in the same "
            f"order on all ranks, or give XLA a thread for each (PJRT_NPROC={2 * threads} in the environment, before JAX starts)")


def original(error: BaseException) -> BaseException | None:
    """The original exception of a compiled program's error; None for an error that is not arraycomm's."""
    found = _pattern.search(str(error))
    return _kept.get(int(found[1])) if found else None


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Inside, errors of compiled programs are raised as what they are: PeerLost, CollectiveMismatch and the others.

    jax raises JaxRuntimeError or ValueError otherwise, whose text says the same. Errors come where a result is waited for.

    - Blocks: never by itself: wait for results inside, by jax.block_until_ready() for one.
    - Errors: those of the operations, see Group; errors of other kinds pass through.

    Examples:
        >>> def work(group):
        ...     with comm.errors():
        ...         return jax.jit(lambda x: comm.all_reduce(x, group=group))(jnp.ones(1)).tolist()
        >>> arraycomm.run(work, 2)
        [[2.0], [2.0]]
    """
    try:
        yield
        check()
    except FOREIGN as error:
        raise_original(error)


def raise_original(error: Exception) -> None:
    """Raises the original exception of the error, or else the error."""
    ours = original(error)
    if ours is None:
        raise error
    if isinstance(ours, DistError):
        effect.forget()  # the failed program's token would fail all later programs, also those of other groups
    raise ours from error
