"""The compiled extension: cffi's `ffi` and `lib` over acomm.h, and the functions of core/native."""

from collections.abc import Callable
from typing import Any, TypeVar, final

_Array = TypeVar("_Array")

ffi: Any
lib: Any

@final
class Buffer:
    address: int
    count: int
    dtype: int
    device_type: int
    device_index: int
    readonly: bool
    shape: tuple[int, ...]
    owner: object
    @property
    def nbytes(self) -> int: ...
    def __new__(
        cls,
        address: int,
        count: int,
        dtype: int,
        device_type: int,
        device_index: int,
        readonly: bool,
        shape: tuple[int, ...],
        owner: object,
    ) -> Buffer: ...
    def part(self, start: int, shape: tuple[int, ...], /) -> Buffer: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        stream: object = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def resolve(array: object, /) -> Buffer: ...
def resolve_out(array: object, /) -> Buffer: ...
def pack(array: object, /) -> Buffer: ...
def allocate(shape: tuple[int, ...], dtype: int, /) -> Buffer: ...
def adopt(shape: tuple[int, ...], dtype: int, address: int, release: int, context: int, /) -> Buffer: ...
def wrap(buffer: Buffer, template: _Array, /) -> _Array: ...
def overlaps(a: Buffer, b: Buffer, /) -> bool: ...
def interrupted() -> BaseException | None: ...

@final
class Shortcut:
    def __new__(
        cls, run: int, group: int, rank: int, size: int, error: Callable[[int, int], BaseException], /
    ) -> Shortcut: ...
    def close(self) -> None: ...

class Shortcuts:
    _shortcut: Shortcut | None

@final
class ShortcutMethod:
    __wrapped__: Callable[..., Any]
    def __new__(cls, kind: int, function: Callable[..., Any], /) -> ShortcutMethod: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
