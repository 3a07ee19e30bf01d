"""The slow path of reading and making arrays: error texts for unsupported arrays, and imports of memory by other libraries.

Called by name from native/reader/refuse.c. A function for an error returns the exception to raise; its last argument is the
causing exception, or None. Nothing here imports a framework: every lookup is for a given array, so its library is
loaded already.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from arraycomm._engine import Buffer, allocate

from ..base.errors import ImmutableOutput, StridedOutput
from .types import CODES, DeviceType, DType

_LEGACY, _UNORDERED = 1, -1  # streams as DLPack numbers them: CUDA's legacy default stream; no order wanted

_TYPES = 64  # as in native/reader/types.c
_NO_OUT = "omit out= if the call has it, and"
KEYS = "JAX's random keys can be moved (broadcast, gather, send, ...), not reduced; pass jax.random.key_data(x)"
_SUPPORTED = ", ".join(dtype.label for dtype in DType)


def _name(array: object) -> str:
    kind = type(array)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _dtype_error(dtype: object) -> TypeError:
    return TypeError(f"dtype {dtype} is not supported; supported are {_SUPPORTED}. Convert the array first: other "
                     "dtypes of NumPy, torch, JAX and buffers are only moved (broadcast, gather, send, ...)")


# ---- errors ----


def bad_dtype(descr: Any, _cause: object) -> TypeError:
    """The error for a NumPy dtype without an equivalent, or with foreign byte order."""
    native = descr if descr.isnative else descr.newbyteorder("=")
    if native is not descr and native.name in {dtype.label for dtype in DType}:
        return TypeError(
            f"dtype {descr.str} has foreign byte order; convert it with x.astype({native.name!r}). "
            f"Supported are {_SUPPORTED}, in native byte order"
        )
    return _dtype_error(descr)


def bad_dlpack_dtype(array: Any, told: object) -> TypeError:
    return _dtype_error(_dtype(array) or told)


def bad_capsule(array: object, _capsule: object) -> TypeError:
    return TypeError(f"{_name(array)}.__dlpack__() gave something that is no DLPack tensor of major version 0 or 1")


def unreadable(array: Any, cause: BaseException | None) -> TypeError:
    """The error for an array that its library cannot export, or whose format has no equivalent."""
    words = hint(array)
    if words:
        return TypeError(words)
    if cause is None:
        return _dtype_error(f"of format {memoryview(array).format!r}")
    dtype = _dtype(array)
    if dtype and dtype.rpartition(".")[2] not in {dtype.label for dtype in DType}:
        return _dtype_error(dtype)
    return TypeError(f"cannot read the {_name(array)}: {str(cause).partition(chr(10))[0]}")


def _dtype(array: Any) -> str:
    """The array's dtype as text; "" if reading it fails."""
    try:
        return str(getattr(array, "dtype", ""))
    except Exception:  # a foreign property may raise anything
        return ""


def not_an_array(array: object, _cause: object) -> TypeError:
    return TypeError(
        hint(array)
        or f"expected an array (NumPy, torch, JAX, or anything with __dlpack__ or the buffer protocol), "
        f"got {_name(array)}; {_of_members(array) or 'for numbers use numpy.asarray(x)'}"
    )


def _of_members(given: object) -> str | None:
    """Advice for a tree of arrays; None for other objects. Includes JAX's registered trees if JAX is loaded."""
    all_leaves = getattr(sys.modules.get("jax.tree_util"), "all_leaves", None)
    if isinstance(given, (list, tuple, dict)) or (all_leaves and given is not None and not all_leaves([given])):
        return ("pass its arrays one by one; arraycomm.frameworks.jax.all_reduce_tree() reduces a tree of JAX's arrays; for "
                "numbers use numpy.asarray(x)")
    return None


def no_memory(array: object, _cause: object) -> TypeError:
    return TypeError(hint(array) or f"the {_name(array)} has no memory of its own (a meta, fake or lazy tensor?)")


def device_strided(_array: object, _cause: object) -> ValueError:
    return ValueError("the array is not C-contiguous and not in host memory; pass a contiguous copy made by its library")


def device_copy(_array: object, _cause: object) -> ValueError:
    return ValueError("only arrays in host memory can be packed here; copy the array with its own library first")


def readonly_out(array: object, _cause: object) -> ValueError:
    if derives(array, "jax", "Array"):
        return ImmutableOutput(f"JAX arrays are immutable and cannot be written into; {_NO_OUT} use the result")
    return ImmutableOutput(f"the {_name(array)} is read-only; pass a writable array, or {_NO_OUT} use the result")


def unversioned_out(array: object, _cause: object) -> ValueError:
    if derives(array, "jax", "Array"):
        return readonly_out(array, None)
    return ImmutableOutput(f"the {_name(array)} exports its memory by DLPack without a version, which cannot say whether it may "
                           f"be written; if it may, pass out=arraycomm.writable(x), or {_NO_OUT} use the result")


def derived_out(array: object, _cause: object) -> ValueError:
    return ValueError(
        f"the {_name(array)} is a lazy conjugate, a lazy negative or a copy, so that a result written there would be "
        "lost; pass an array with memory of its own (torch: x.resolve_conj().resolve_neg())"
    )


def strided_out(_array: object, _cause: object) -> ValueError:
    return StridedOutput(
        f"the output is not C-contiguous; pass a contiguous array, or {_NO_OUT} copy the result into place"
    )


# ---- advice on special arrays of the libraries ----


def derives(array: object, module: str, name: str) -> bool:
    """Checks the type: __class__ may be overridden."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(array), kind)


def hint(array: Any, *, keys: bool = False) -> str | None:
    """The reason why a special array is not supported, and a remedy; None for others. keys: accept JAX's random keys."""
    if derives(array, "numpy.ma", "MaskedArray"):
        return "a masked array would lose its mask; pass x.filled(value) or x.data"
    if any(kind.__name__ == "Tracer" and kind.__module__.startswith("jax.") for kind in type(array).__mro__):
        return (
            "a JAX tracer has no value yet; inside of jit, grad and vmap use arraycomm.frameworks.jax, "
            "or call this outside of them"
        )
    if derives(array, "jax", "Array"):
        return _jax_hint(array, keys)
    return _torch_hint(array) if derives(array, "torch", "Tensor") else None


def _jax_hint(array: Any, keys: bool) -> str | None:
    if hasattr(array, "is_deleted") and array.is_deleted():
        return "the JAX array has been deleted or donated; pass the array that replaced it"
    if not keys and not hasattr(array, "__dlpack__"):
        return KEYS
    if len(array.sharding.device_set) > 1:
        return (
            f"the JAX array is spread over {len(array.sharding.device_set)} devices; pass one shard, "
            "x.addressable_shards[i].data, or gather it first, jax.device_put(x, jax.devices()[0])"
        )
    return None


def _torch_hint(array: Any) -> str | None:
    if derives(array, "torch.distributed.tensor", "DTensor"):
        return "a DTensor is spread over ranks; pass x.to_local()"
    if derives(array, "torch.nn.parameter", "UninitializedTensorMixin"):
        return f"the {_name(array)} has no shape yet; run a forward pass of its lazy module first, or call x.materialize(shape)"
    if array.is_nested:
        return "nested tensors are not supported; pass the tensors of x.unbind() or x.to_padded_tensor(0)"
    if array.is_quantized:
        return f"dtype {array.dtype} (quantized) is not supported; pass x.int_repr() or x.dequantize()"
    if str(array.layout) != "torch.strided":
        return f"torch tensors of layout {array.layout} are not supported; pass x.to_dense()"
    if array.is_meta:
        return "a meta tensor has no memory; pass a tensor on a real device"
    return None


# ---- objects of other libraries ----


def torch_resolved(tensor: Any) -> Any:
    """A tensor without conjugate and negative bits."""
    return tensor.detach().resolve_conj().resolve_neg()


def torch_samples() -> tuple[Any, ...]:
    """Tensors on which reader/torch.c tries its fast path: a plain one, a lazy conjugate, a lazy negative. None where tensors are
    no objects of this kind."""
    torch = sys.modules["torch"]
    if torch._C.TensorBase.__basicsize__ < object.__basicsize__ + 8:
        return ()
    plain = torch.zeros(1, dtype=torch.complex64, device="cpu")
    return plain, plain.conj(), plain.conj().imag


def torch_byte(signed: bool) -> Any:
    return sys.modules["torch"].int8 if signed else sys.modules["torch"].uint8


def numpy_ndarray() -> type:
    return sys.modules["numpy"].ndarray  # type: ignore[no-any-return]


def numpy_dtype(label: str) -> Any:
    """NumPy's dtype object of this name; those that NumPy does not know come from ml_dtypes."""
    numpy = sys.modules["numpy"]
    with contextlib.suppress(TypeError):
        return numpy.dtype(label)
    try:
        return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), label))
    except ImportError:
        raise TypeError(f"NumPy results of dtype {label} need the package ml_dtypes; install it") from None


def codes() -> dict[object, int]:
    """Numbers of the reductions, by name and object."""
    return CODES


def received() -> type:
    from ..group.work import Received

    return Received


# ---- arrays on CUDA devices ----


def cuda_stream(array: object, index: int) -> int:
    """The current stream of the array's library on this device, as a DLPack number.

    1, the legacy default stream, for libraries without current streams, JAX among them: what they export is ordered for
    whichever stream they are asked.
    """
    root = type(array).__module__.partition(".")[0]
    return _current_stream(root, index) if root in ("cupy", "torch") else _LEGACY


def _current_stream(library: str, index: int) -> int:
    cuda = sys.modules[library].cuda
    return int(cuda.get_current_stream(index).ptr if library == "cupy" else cuda.current_stream(index).cuda_stream) or _LEGACY


def current_streams(index: int) -> list[int]:
    """As cuda_stream(), for every loaded library with current streams; for callers without an array."""
    found = ["cupy"] if "cupy" in sys.modules else []
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        found.append("torch")
    return [_current_stream(library, index) for library in found]


def landing(array: object, buffer: Buffer) -> Callable[[], None] | None:
    """A function to call after a write to this array was enqueued on the Buffer's stream: it waits for the write. None if the
    library orders its work after that stream (see cuda_stream)."""
    if type(array).__module__.partition(".")[0] in ("cupy", "torch"):
        return None
    from ..gpu.runtime import runtime

    return lambda: runtime().synchronize(buffer.stream, buffer.device_index)


def contiguous(array: Any) -> Any:
    """A packed copy on the array's own device, made by its library."""
    if hasattr(array, "contiguous"):  # torch
        return array.detach().contiguous()
    if hasattr(array, "__dlpack__") and hasattr(array, "copy"):  # CuPy
        return array.copy(order="C")
    raise device_strided(array, None)


def order_consumer(buffer: Buffer, stream: int | None) -> None:
    """Before a library adopts a Buffer on a CUDA device: makes its stream wait for the Buffer's."""
    from ..gpu.runtime import runtime

    theirs = _LEGACY if stream is None else stream
    if theirs not in (_UNORDERED, buffer.stream):
        runtime().order(after=buffer.stream, stream=theirs, device=buffer.device_index)


def empty_like(template: Any, shape: tuple[int, ...]) -> Any:
    """A new array of the template's library, dtype and CUDA device by the library's own allocator; None where it has no arrays
    that may be written."""
    if derives(template, "torch", "Tensor"):
        return template.detach().new_empty(shape)
    if derives(template, "cupy", "ndarray"):
        with template.device:
            return sys.modules["cupy"].empty(shape, template.dtype)
    return None


_importers: dict[type, tuple[bool, Callable[..., Any] | None]] = {}


def _importer(template: Any) -> tuple[bool, Callable[..., Any] | None]:
    """Whether the template is JAX's, and `from_dlpack` of the library that it comes from."""
    kind = type(template)
    found = _importers.get(kind)
    if found is None:
        namespace = getattr(template, "__array_namespace__", None)
        library = namespace() if namespace else sys.modules.get(kind.__module__.partition(".")[0])
        if len(_importers) >= _TYPES:  # bounded: some programs make a class per object, which a cache would keep alive
            _importers.clear()
        found = _importers[kind] = kind.__module__.startswith("jaxlib."), getattr(library, "from_dlpack", None)
    return found


_WIDE = frozenset((DType.INT64, DType.UINT64, DType.FLOAT64, DType.COMPLEX128))  # JAX has them with jax_enable_x64 only
_jax_entries: dict[Any, Callable[[Buffer], Any] | None] = {}  # by device


def jax_entry(device: Any) -> Callable[[Buffer], Any] | None:
    """jaxlib's internal DLPack importer for a device, or None if this jaxlib has none that works as expected. It returns None
    for memory elsewhere.

    jax.dlpack.from_dlpack comes to it too, after 20 us of Python, for a GPU 60. It is private, so it is looked up and tried once.
    """
    if device not in _jax_entries:
        _jax_entries[device] = _find_jax_entry(device)
    return _jax_entries[device]


def _find_jax_entry(device: Any) -> Callable[[Buffer], Any] | None:
    try:
        function = importlib.import_module("jax._src.lib")._jax.dlpack_managed_tensor_to_buffer
        platform = device.platform
    except Exception:  # catch all for a private module: the public API is the fallback
        return None
    if platform == "gpu":
        return _find_gpu_entry(function, device)

    def with_type(buffer: Buffer) -> Any:
        return function(buffer.__dlpack__(), device, None, None, 1)  # the device's DLPack type: since jaxlib 0.10

    def without(buffer: Buffer) -> Any:
        return function(buffer.__dlpack__(), device, None, None)

    entries = (with_type, without) if platform == "cpu" else ()
    return next((entry for entry in entries if _works(entry, allocate((2, 3), DType.INT32))), None)


def _find_gpu_entry(function: Callable[..., Any], device: Any) -> Callable[[Buffer], Any] | None:
    from ..gpu.memory import allocate_on

    index = device.local_hardware_id

    def entry(buffer: Buffer) -> Any:
        if (buffer.device_type, buffer.device_index) != (DeviceType.CUDA, index):
            return None
        stream = device.get_stream_for_external_ready_events()  # our work is ordered with this stream
        return function(buffer.__dlpack__(stream=stream), device, stream, None, int(DeviceType.CUDA))

    like = Buffer(0, 0, DType.INT32, int(DeviceType.CUDA), index, False, (0,), None)
    return entry if _works(entry, allocate_on(like, (2, 3))) else None


def _works(entry: Callable[[Buffer], Any], probe: Buffer) -> bool:
    """Whether it gives the same result as the public API, without a copy."""
    with contextlib.suppress(Exception):
        array = entry(probe)
        public = sys.modules["jax"].dlpack.from_dlpack(probe)
        alike = (type(array) is type(public) and array.shape == public.shape and array.dtype == public.dtype
                 and array.committed == public.committed and array.sharding == public.sharding)
        return bool(alike and array.unsafe_buffer_pointer() == probe.address)
    return False


def _wrap_jax(buffer: Buffer, template: Any) -> Any:
    """A JAX array over the buffer by the fast path; None if that does not apply."""
    if buffer.dtype in _WIDE and not sys.modules["jax"].config.jax_enable_x64:
        return None
    device = getattr(template.sharding, "_device", None) or template.device
    entry = _jax_entries[device] if device in _jax_entries else jax_entry(device)
    return entry(buffer) if entry else None


def plain(buffer: Buffer) -> memoryview | Buffer:
    """A memoryview; the Buffer itself for device memory, or a dtype without a format letter."""
    with contextlib.suppress(BufferError):
        return memoryview(buffer)
    return buffer


def elsewhere() -> Callable[[Buffer, Any], Any]:
    return wrap_elsewhere


def wrap_elsewhere(buffer: Buffer, template: Any) -> Any:
    """wrap() for libraries without a fast path: by `from_dlpack`, or a memoryview if there is none."""
    of_jax, from_dlpack = _importer(template)
    if of_jax and (array := _wrap_jax(buffer, template)) is not None:
        return array
    if from_dlpack is None:
        return plain(buffer)
    if buffer.dtype == DType.FLOAT64 and derives(template, "mlx.core", "array"):  # MLX converts it to float32 by default
        return sys.modules["mlx.core"].array(plain(buffer), dtype=template.dtype)
    array = from_dlpack(buffer)
    if derives(template, "jax", "Array") and array.device != template.device:
        array = sys.modules["jax"].device_put(array, template.device)
    label = found = DType(buffer.dtype).label
    with contextlib.suppress(Exception):  # the library has no name for the dtype (TVM FFI's complex numbers)
        found = str(getattr(array, "dtype", label))
    if found.rpartition(".")[2].rstrip("'>") != label:
        raise TypeError(
            f"{_name(template)} cannot hold {label} here and made {array.dtype} of it"
            + ("; set jax_enable_x64" if derives(template, "jax", "Array") else "")
        )
    return array
