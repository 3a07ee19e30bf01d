"""Which operations take which libraries' arrays. `python -m tests.frameworks.array_matrix` writes the table of
docs/reference/compatibility.md: two ranks that are threads for each library that is installed, and a process for each library.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import arraycomm

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- array_matrix begins -->\n", "<!-- array_matrix ends -->\n"
_SECONDS = 180.0  # an import of TensorFlow from a cold disk takes half a minute
_INPUTS = [np.arange(1, 5, dtype=np.float32) * (rank + 1) for rank in range(2)]
_SUM = _INPUTS[0] + _INPUTS[1]
_BOTH = np.concatenate(_INPUTS)
YES = "yes"
WRONG = "wrong result"


class Library(NamedTuple):
    module: str
    package: str  # "" for Python's own
    make: Callable[[Any, np.ndarray[Any, Any]], Any]


LIBRARIES = {
    "NumPy": Library("numpy", "numpy", lambda numpy, values: values),
    "torch": Library("torch", "torch", lambda torch, values: torch.from_numpy(values)),
    "JAX": Library("jax.numpy", "jax", lambda jnp, values: jnp.asarray(values)),
    "CuPy": Library("cupy", "cupy-cuda12x", lambda cupy, values: cupy.asarray(values)),
    "MLX": Library("mlx.core", "mlx", lambda mx, values: mx.array(values)),
    "PaddlePaddle": Library("paddle", "paddlepaddle", lambda paddle, values: paddle.to_tensor(values)),
    "TensorFlow": Library("tensorflow", "tensorflow-cpu", lambda tf, values: tf.constant(values)),
    "tinygrad": Library("tinygrad", "tinygrad", lambda tinygrad, values: tinygrad.Tensor(values, device="NPY")),
    "dpnp": Library("dpnp", "dpnp", lambda dpnp, values: dpnp.asarray(values, device="cpu")),
    "Warp": Library("warp", "warp-lang", lambda warp, values: warp.array(values, device="cpu")),
    "array-api-strict": Library("array_api_strict", "array-api-strict", lambda strict, values: strict.asarray(values)),
    "TVM FFI": Library("tvm_ffi", "apache-tvm-ffi", lambda tvm_ffi, values: tvm_ffi.from_dlpack(values)),
    "PyArrow tensors": Library("pyarrow", "pyarrow", lambda pyarrow, values: pyarrow.Tensor.from_numpy(values)),
    "array.array": Library("array", "", lambda array, values: array.array("f", values.tolist())),
    "memoryview": Library("builtins", "", lambda builtins, values: builtins.memoryview(values)),
}


class Operation(NamedTuple):
    """call(group, x, y, half): arrays of one library, y like x, half as long. expected: what each rank gets, None for nothing."""

    call: Callable[[Any, Any, Any, Any], Any]
    expected: tuple[Any, Any]


def _message(group: Any, x: Any, y: Any, half: Any) -> Any:
    if group.rank == 0:
        return group.send(x, 1)
    return group.recv(0, like=x).array


def _scatter(group: Any, x: Any, y: Any, half: Any) -> Any:
    return group.scatter(x, 0) if group.rank == 0 else group.scatter(None, 0, like=half)


def _out(group: Any, x: Any, y: Any, half: Any) -> Any:
    group.all_reduce(x, out=y)
    return y


OPERATIONS = {
    "all_reduce": Operation(lambda group, x, y, half: group.all_reduce(x), (_SUM, _SUM)),
    "with out": Operation(_out, (_SUM, _SUM)),
    "async": Operation(lambda group, x, y, half: group.all_reduce(x, async_op=True).result(), (_SUM, _SUM)),
    "reduce": Operation(lambda group, x, y, half: group.reduce(x, 0), (_SUM, None)),
    "reduce_scatter": Operation(lambda group, x, y, half: group.reduce_scatter(x), (_SUM[:2], _SUM[2:])),
    "scan": Operation(lambda group, x, y, half: group.scan(x), (_INPUTS[0], _SUM)),
    "broadcast": Operation(lambda group, x, y, half: group.broadcast(x, 0), (_INPUTS[0], _INPUTS[0])),
    "all_gather": Operation(lambda group, x, y, half: group.all_gather(x), (_BOTH, _BOTH)),
    "gather": Operation(lambda group, x, y, half: group.gather(x, 0), (_BOTH, None)),
    "scatter": Operation(_scatter, (_INPUTS[0][:2], _INPUTS[0][2:])),
    "all_to_all": Operation(lambda group, x, y, half: group.all_to_all(x), (_BOTH[[0, 1, 4, 5]], _BOTH[[2, 3, 6, 7]])),
    "send, recv": Operation(_message, (None, _INPUTS[1] / 2)),
}


def values(array: Any) -> np.ndarray[Any, Any]:
    """As NumPy's, by whichever way the library has."""
    if hasattr(array, "numpy"):
        return np.asarray(array.numpy())
    for way in (np.from_dlpack, np.asarray):
        try:
            return way(array)
        except (TypeError, AttributeError, RuntimeError, BufferError):
            continue
    return np.asarray(array.to_numpy() if hasattr(array, "to_numpy") else array.asnumpy())


def cell(group: Any, library: Library, module: Any, operation: Operation) -> str:
    """YES; the type of a result that is another library's; WRONG; or the error."""
    x, y, half = (library.make(module, _INPUTS[group.rank][:length].copy()) for length in (4, 4, 2))
    try:
        result = operation.call(group, x, y, half)
    except Exception as error:  # the table says which
        return f"{type(error).__name__}: {error}"
    expected = operation.expected[group.rank]
    if expected is None:
        return YES if result is None else WRONG
    if not np.array_equal(values(result), expected):
        return WRONG
    return YES if type(result) is type(x) else f"{type(result).__module__}.{type(result).__qualname__}"


def row(name: str) -> dict[str, str]:
    """What each operation says of one library, in groups of its own: an error in one changes nothing in another."""
    library = LIBRARIES[name]
    module = importlib.import_module(library.module)
    found = {}
    for title, operation in OPERATIONS.items():
        said = arraycomm.run(lambda group, operation=operation: cell(group, library, module, operation), 2)
        found[title] = min(said, key=lambda word: (word == YES, word.startswith("PeerLost")))
    return found


def version(library: Library) -> str:
    """"" where it is not installed."""
    try:
        return importlib.metadata.version(library.package) if library.package else f"Python {platform.python_version()}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def asked(name: str) -> dict[str, str]:
    """row() in another process, which may crash."""
    done = subprocess.run([sys.executable, "-m", __spec__.name, name], cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = next((line for line in reversed(done.stderr.splitlines()) if re.match(r"[\w.]+: ", line)), "")
        return dict.fromkeys(OPERATIONS, f"exit code {done.returncode}: {last}")


def table(rows: dict[str, tuple[str, dict[str, str]]]) -> str:
    """Markdown: names, versions, and which operations fall into which column; below it the errors."""
    notes: list[str] = []
    lines = ["| library | version | right, of the library's type | right, of another type | no |", "|---|---|---|---|---|"]
    for name, (number, cells) in rows.items():
        own = [title for title, said in cells.items() if said == YES]
        other = [title for title, said in cells.items() if said != YES and _is_type(said)]
        no = [title for title, said in cells.items() if said != YES and not _is_type(said)]
        types = ": " + ", ".join(sorted({f"`{cells[title].removeprefix('builtins.')}`" for title in other})) if other else ""
        numbers = f" ({', '.join(map(str, sorted({_note(cells[title], notes) for title in no})))})" if no else ""
        shown = [name, number or "not installed", _titles(own), _titles(other) + types, _titles(no) + numbers]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"{index}. {note}" for index, note in enumerate(notes, 1)), ""])


def _is_type(said: str) -> bool:
    return said != WRONG and ": " not in said


def _titles(titles: list[str]) -> str:
    if len(titles) == len(OPERATIONS):
        return "all"
    return "all others" if len(titles) > len(OPERATIONS) / 2 else "; ".join(titles)


def _note(said: str, notes: list[str]) -> int:
    """Its number."""
    text = " ".join(said.split())
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1


def main(arguments: list[str]) -> None:
    if arguments:
        print(json.dumps(row(arguments[0])))
        return
    rows = {}
    for name, library in LIBRARIES.items():
        rows[name] = (version(library), asked(name) if version(library) else {})
        print(f"{name}: {sorted(set(rows[name][1].values()))}", flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"(?s)(?<={BEGIN}).*(?={END})", lambda _: "\n" + table(rows) + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
