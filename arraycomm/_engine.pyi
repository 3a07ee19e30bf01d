"""The compiled extension: cffi's `ffi` and `lib` over acomm.h, and the functions of core/native."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

_Array = TypeVar("_Array")
_Result_co = TypeVar("_Result_co", covariant=True)

ffi: Any
lib: Any

@final
class Buffer:
    address: int
    count: int
    dtype: int
    device_type: int
    device_index: int
    stream: int
    readonly: bool
    fleeting: bool
    shape: tuple[int, ...]
    owner: object
    @property
    def nbytes(self) -> int: ...
    def __new__(
        cls, address: int, count: int, dtype: int, device_type: int, device_index: int, readonly: bool, shape: tuple[int, ...],
        owner: object, stream: int = 0, fleeting: bool = False,
    ) -> Buffer: ...
    def part(self, start: int, shape: tuple[int, ...], /) -> Buffer: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self, stream: object = None, *, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def resolve(array: object, /) -> Buffer: ...
def resolve_out(array: object, /) -> Buffer: ...
def writable(array: object, /) -> Buffer: ...
def pack(array: object, /) -> Buffer: ...
def layout(shape: tuple[int, ...], /) -> int: ...
def allocate(shape: tuple[int, ...], dtype: int, /) -> Buffer: ...
def give_back() -> None: ...
def adopt(
    shape: tuple[int, ...], dtype: int, address: int, release: int, context: int, device_type: int = 1,
    device_index: int = 0, stream: int = 0, enter: int = 0, apart: int = 0, /
) -> Buffer: ...
def wrap(buffer: Buffer, template: _Array, /) -> _Array: ...
def overlaps(a: Buffer, b: Buffer, /) -> bool: ...
def interrupted() -> BaseException | None: ...
def interrupting() -> bool: ...

@final
class Shortcut:
    def __new__(
        cls, entries: int, group: int, rank: int, size: int, error: Callable[[int, int], BaseException], /
    ) -> Shortcut: ...
    def close(self) -> None: ...
    def __enter__(self) -> Shortcut: ...
    def __exit__(self, *error: object) -> None: ...
    def end(self) -> None: ...
    def number(self, group: object, /) -> int: ...
    def operation(self, handle: int, owners: object, /) -> Operation: ...

@final
class Operation:
    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...
    def source(self) -> tuple[int, int, int]: ...

@final
class Work(Generic[_Result_co]):
    """The handle of an asynchronous operation. Calls with async_op=True, isend() and irecv() make it.

    The arrays that take part stay alive until the operation has ended. Do not write to an input, nor read an output, before. An
    operation continues whether or not the program waits for it; a Work may be dropped.

    - Blocks: wait() and result() do; done() does not.
    - Errors: the operation's own, from wait() and result(), every time.

    Examples:
        >>> def work(group):
        ...     going = group.all_reduce(np.ones(2), async_op=True)
        ...     return going.result().tolist()
        >>> arraycomm.run(work, 2)
        [[2.0, 2.0], [2.0, 2.0]]
    """

    def __new__(cls, pending: object, make: Callable[[], _Result_co], /) -> Work[_Result_co]: ...
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the operation has ended.

        - Blocks: until the operation has ended, on this rank.
        - Timeout: seconds; TimeoutError after it, and the operation continues: wait again. None: the operation's own timeout.
        - Errors: the operation's own (a DistError) when it failed.

        Examples:
            >>> arraycomm.run(lambda group: group.barrier(async_op=True).wait(), 2)
            [None, None]
        """

    def result(self, timeout: float | None = None) -> _Result_co:
        """Waits, then gives the result of the synchronous call.

        - Blocks: as wait().
        - Timeout: as of wait(): TimeoutError, and the operation continues.
        - Errors: as wait().

        Examples:
            >>> arraycomm.run(lambda group: group.scan(np.ones(1), async_op=True).result().tolist(), 2)
            [[1.0], [2.0]]
        """

    def done(self) -> bool:
        """Whether the operation has ended, with or without an error.

        - Blocks: never; it continues the operation.
        - Errors: none; those of the operation come from wait().

        Examples:
            >>> def work(group):
            ...     going = group.barrier(async_op=True)
            ...     going.wait()
            ...     return going.done()
            >>> arraycomm.run(work, 2)
            [True, True]
        """

    def source(self) -> tuple[int, int]:
        """After a receive: the rank that sent the message, and its tag.

        - Blocks: never; wait() comes first.
        - Errors: ValueError for other operations.

        Examples:
            >>> def work(group):
            ...     coming = group.irecv(tag=4, like=np.empty(1))
            ...     group.send(np.ones(1), dest=0, tag=4)
            ...     return coming.result().source, coming.source()
            >>> arraycomm.run(work, 1)
            [(0, (0, 4))]
        """

class Shortcuts:
    _shortcut: Shortcut | None
    _batch: list[Work[Any]] | None

@final
class ShortcutMethod:
    __wrapped__: Callable[..., Any]
    kind: int
    begins: bool
    def __new__(
        cls, kind: int, names: tuple[str, ...], positional: int, function: Callable[..., Any] | None, begins: bool, /
    ) -> ShortcutMethod: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
