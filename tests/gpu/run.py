"""What needs a GPU, as parts that end by themselves: `tests/run_gpu`. Prints a report in Markdown, which grows part by part.

Each part is a process with a time limit, so that one that hangs or dies costs only itself. The report and all output are
written to gpu.md and gpu.log in the folder $OUT, where that is set. The package comes from a wheel in the folder dist, with what
else lies there (cffi's, for an interpreter that has none), otherwise it is built from this checkout, without the network. For a
machine that cannot build it, make the wheels elsewhere: `pip wheel --no-deps -w dist .` (or `python -m build --wheel -o dist`; by
CPython 3.11 or later: the wheel then is for all from 3.11 on) and, for its Python, `pip download --only-binary :all:
--python-version 3.12 -d dist cffi` (which brings pycparser too). A wheel whose Python files are not this
checkout's is refused; what was changed in C only is not seen.

--standin: over the stand-ins in host memory (tests/standin), to try this program itself; no figure means anything then.
ARRAYCOMM_CUDART_LIBRARY and ARRAYCOMM_NCCL_LIBRARY, where set, name stand-ins that are compiled already.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 480  # for all parts

# Name, arguments of tests.gpu.parts, time limit in seconds; what matters most, and is the likeliest to work, first.
PARTS: list[tuple[str, list[str], int]] = [
    ("machine", ["machine"], 60),
    ("what a call costs: all_reduce in place on 1 rank, where NCCL has nothing to do", ["overhead", "1", "torch"], 110),
    ("operations of torch, 1 rank", ["operations", "1", "torch"], 60),
    ("operations of torch, 2 ranks", ["operations", "2", "torch"], 90),
    ("staged over the socket engine, 2 ranks", ["staged", "2", "torch"], 60),
    ("operations of cupy, 1 rank", ["operations", "1", "cupy"], 60),
    ("operations of jax, 1 rank", ["operations", "1", "jax"], 75),
    ("programs of jax, 1 rank", ["compiled", "1", "jax"], 75),
    ("symmetric memory, 1 rank", ["symmetric", "1", "torch"], 60),
    ("all_reduce in place on 2 ranks, beside raw NCCL and torch.distributed", ["overhead", "2", "torch"], 90),
    ("torch.distributed's functions, 2 ranks", ["facade", "2", "torch"], 60),
    ("a peer dies, aborts or does not come, 2 ranks", ["faults", "2", "torch"], 90),
    ("modules of torch, 2 ranks", ["training", "2", "torch"], 90),
    ("sparse sums, windows, 2 ranks", ["sums", "2"], 75),
    ("symmetric memory, 2 ranks", ["symmetric", "2", "torch"], 60),
    ("programs of jax, 2 ranks", ["compiled", "2", "jax"], 75),
    ("operations of cupy, 2 ranks", ["operations", "2", "cupy"], 90),
    ("operations of jax, 2 ranks", ["operations", "2", "jax"], 90),
    ("modules of torch, 1 rank", ["training", "1", "torch"], 75),
]
_TAIL = 25  # lines of a failed part in the report


def install(folder: Path) -> Path | None:
    """Puts the package where the parts find it: wheels into the folder, which it gives, else into this environment (None).
    ValueError for a wheel with other Python files than this checkout: nobody wants figures of that."""
    wheels = [wheel for wheel in sorted(ROOT.glob("dist/*.whl")) if _fits(wheel.name)]
    if any(wheel.name.startswith("arraycomm") for wheel in wheels):
        for wheel in wheels:  # unpacked, which is all that these need: the machine may have no pip, or one that refuses
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        other = [name for name, path in _modules() if not _same(folder / name, path)]
        if other:
            raise ValueError(f"the wheel in {ROOT / 'dist'} is of another tree: {len(other)} files differ, {other[0]} say; build "
                             "it again (tests/run_gpu --help)")
        return folder
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-e",
                    str(ROOT)], check=True, env=os.environ | {"PIP_BREAK_SYSTEM_PACKAGES": "1"})
    return None


def _modules() -> Iterator[tuple[str, Path]]:
    """Of the package in this checkout: path in a wheel, and file."""
    for top, inside in (("arraycomm", "arraycomm"), ("backends", "arraycomm/backends"), ("bench", "arraycomm/bench")):
        for path in sorted((ROOT / top).rglob("*.py")):
            if "torch_plugin" not in path.parts:  # which lies elsewhere, for torch
                yield f"{inside}/{path.relative_to(ROOT / top).as_posix()}", path


def _same(installed: Path, path: Path) -> bool:
    return installed.is_file() and installed.read_bytes() == path.read_bytes()


def _fits(wheel: str) -> bool:
    """Whether a wheel of this name is for this interpreter, as far as what we bring needs telling apart."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    machine = os.uname().machine
    return (abi in ("none", "abi3") or python == f"cp{sys.version_info[0]}{sys.version_info[1]}") and (
        platform == "any" or machine in platform)


def environment(installed: Path | None) -> dict[str, str]:
    """Of a part. Parts run elsewhere, so that the checkout, whose engine may not be built, hides no installed package."""
    path = [str(installed)] if installed else []
    made = os.environ | {"PYTHONPATH": os.pathsep.join([*path, str(ROOT)]), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return {"NCCL_DEBUG": "WARN"} | made  # what the caller has set counts


class Report:
    """Markdown that is complete after every part."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._rows = ["| part | result | s |", "|---|---|---|"]
        self._texts: list[str] = []
        self.failures = 0

    def add(self, name: str, output: str, result: str, seconds: float) -> None:
        lines = output.splitlines()
        shown = [line for line in lines if line.startswith("|")]
        self._rows.append(f"| {name} | {result} | {seconds:.0f} |")
        self._texts += [f"## {name}", "", *shown, ""] if shown else []
        if result != "ok":
            self.failures += result != "not here"
            self._texts += [f"## {name}: {result}", "", "```", *lines[-_TAIL:], "```", ""]
        self._write(f"==== {name}: {result} ====\n{output}\n")

    def text(self) -> str:
        return "\n".join([f"# arraycomm on a GPU, {datetime.date.today()}", "", *self._rows, "", *self._texts])

    def _write(self, log: str) -> None:
        if self._folder is not None:
            (self._folder / "gpu.md").write_text(self.text(), encoding="utf-8")
            with open(self._folder / "gpu.log", "a", encoding="utf-8") as file:
                file.write(log)


def run(arguments: Sequence[str], limit: float, environ: dict[str, str], folder: Path) -> tuple[str, str]:
    """(what the interpreter printed with these arguments, "ok", "not here", or what went wrong)."""
    path = folder / "output"
    with open(path, "w+") as output:
        part = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output, env=environ, cwd=folder,
                                start_new_session=True)
        try:
            code = part.wait(limit)
            result = {0: "ok", 3: "not here"}.get(code, f"failed with {code}")
        except subprocess.TimeoutExpired:
            result = f"was ended after {limit:.0f} s"
        _end(part)
    return path.read_text(encoding="utf-8", errors="replace"), result


def _end(part: subprocess.Popen[bytes]) -> None:
    """The part and its ranks; what still runs prints its stacks first."""
    for how, patience in ((signal.SIGABRT, 3.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(part.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                part.wait(patience)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/run_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--standin", action="store_true", help="over the stand-ins, as this environment has the package")
    parser.add_argument("--wheel", action="store_true", help="with --standin: of the wheel in dist, as on the machine with a GPU")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for all parts together (default {SECONDS})")
    parser.add_argument("--only", action="append", metavar="WORDS", help="parts whose name has these words; may be repeated")
    given = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    end, report = time.monotonic() + given.seconds, Report(os.environ.get("OUT"))
    with tempfile.TemporaryDirectory(prefix="arraycomm-gpu-") as name:
        folder = Path(name)
        try:
            installed = install(folder / "installed") if given.wheel or not given.standin else None
        except (subprocess.CalledProcessError, ValueError) as error:
            report.add("installing the package", str(error), "failed", 0)
            print(report.text())
            return 1
        for title, arguments, limit in PARTS:
            if not any(words in title for words in given.only or [""]):
                continue
            if given.standin and arguments[0] == "operations" and arguments[2] != "torch":
                continue  # there it would be torch's part once more
            begin, left = time.monotonic(), end - time.monotonic()
            if left < 5:
                report.add(title, "", "not begun: no time is left", 0)
                continue
            more = ["--standin"] if given.standin else []
            output, result = run(["-m", "tests.gpu.parts", *arguments, *more], min(limit, left), environment(installed), folder)
            report.add(title, output, result, time.monotonic() - begin)
            print(f"{title}: {result}", file=sys.stderr, flush=True)
    print(report.text())
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
