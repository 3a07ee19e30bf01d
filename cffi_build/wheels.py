"""`python -m cffi_build wheels`: the wheels and the source archive of a release, for Linux, on any one machine.

ziglang compiles for each processor and C library, whatever this machine has; auditwheel finds out what a wheel needs of glibc and
names it after that, abi3audit that a wheel for many Pythons calls nothing that one of them lacks. The extra "wheels" brings them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from cffi_build.build import ROOT

SIZE = 4 << 20  # bytes of a wheel at the most


class Target(NamedTuple):
    platform: str  # the tag of wheels
    triple: str  # ziglang's name


TARGETS = tuple(
    Target(f"{libc}_{processor}", f"{processor}-linux-{abi}")
    for processor in ("x86_64", "aarch64")
    for libc, abi in (("manylinux_2_26", "gnu.2.26"), ("musllinux_1_2", "musl"))
)


def run(*command: str | Path, **environ: str) -> str:
    done = subprocess.run(list(map(str, command)), env=os.environ | environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Python:
    """An environment of an interpreter that wheels are built for, with what builds need."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        run(interpreter, "-m", "venv", folder)
        self._python = folder / "bin" / "python"
        run(self._python, "-m", "pip", "install", "--quiet", "setuptools>=77", "cffi>=1.16", "wheel")

    def wheel(self, archive: Path, target: Target, folder: Path) -> Path:
        processor = target.triple.partition("-")[0]
        run(self._python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, archive,
            CC=f"{sys.executable} -m ziglang cc -target {target.triple}", LDFLAGS="-s",
            _PYTHON_HOST_PLATFORM=f"linux-{processor}",  # of the wheel
            SETUPTOOLS_EXT_SUFFIX=".so")  # without this machine's processor in it: all Pythons take it
        (made,) = folder.glob("*.whl")
        return made


def audited(wheel: Path, target: Target, folder: Path) -> Path:
    """The wheel in `folder`, by the name of its platform, once it is known to run there."""
    if "musl" in target.platform:  # which auditwheel only looks at where it is the machine's library
        check_musl(wheel)
        run(sys.executable, "-m", "wheel", "tags", "--platform-tag", target.platform, wheel)
        tagged = next(path for path in wheel.parent.glob("*.whl") if path != wheel)
        made = tagged.replace(folder / tagged.name)
    else:
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", wheel.parent / "made", wheel)
        (repaired,) = (wheel.parent / "made").iterdir()
        made = repaired.replace(folder / repaired.name)
    if target.platform not in made.name:
        raise SystemExit(f"{made.name} is not for {target.platform}")
    if "-abi3-" in made.name:
        run("abi3audit", "--strict", made)
    if made.stat().st_size > SIZE:
        raise SystemExit(f"{made.name} has {made.stat().st_size} bytes, more than {SIZE}")
    return made


def check_musl(wheel: Path) -> None:
    """musl has one library, and its symbols no versions."""
    from elftools.elf.elffile import ELFFile  # comes with auditwheel

    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                with archive.open(name) as file:
                    needed = [tag.needed for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
                if set(needed) - {"libc.so"}:
                    raise SystemExit(f"{name} needs {', '.join(needed)}, of which musl has libc.so alone")


def main(arguments: list[str]) -> None:
    platforms = [target.platform for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m cffi_build wheels", description=__doc__.partition("\n\n")[2])
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"), help="folder of what is built (dist)")
    parser.add_argument("--platform", nargs="+", choices=platforms, default=platforms, help="only these")
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="COMMAND",
                        help="interpreters (this): one of 3.11 or later builds the wheel of all those, 3.10 and free-threaded "
                             "ones each their own")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", scratch / "archive", ROOT)
        (archive,) = (scratch / "archive").iterdir()
        print(archive.replace(options.output / archive.name), flush=True)
        archive = options.output / archive.name
        for number, interpreter in enumerate(options.python):
            python = Python(interpreter, scratch / str(number))
            for target in TARGETS:
                if target.platform in options.platform:
                    built = python.wheel(archive.resolve(), target, scratch / f"{number}-{target.platform}")
                    print(audited(built, target, options.output), flush=True)
