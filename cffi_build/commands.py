"""setuptools commands: how the engine is compiled, how its wheel is tagged, what the source archive holds.

ARRAYCOMM_BUILD_SANITIZE=address,undefined builds with these sanitizers; CC and CFLAGS act as usual.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from logging import INFO
from pathlib import Path
from zlib import crc32

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

from cffi_build import ROOT, build

# Buffers (PyObject_GetBuffer) joined the limited API in 3.11; the free-threaded build has none.
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
# No contraction of a*b+c: results must not depend on the compiler's choice, nor differ between ranks.
FLAGS = ["-std=gnu11", "-ffp-contract=off", "-fvisibility=hidden", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-pthread"]
JOBS = 2
INSTALLED = Path("cffi_build/installed/arraycomm")  # mypy finds arraycomm.backends and arraycomm.bench there
ARCHIVED = ("arraycomm", "backends", "bench", "cffi_build", "tests", "docs", "examples", ".ci", ".github")
FILES = ("LICENSE", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", ".clang-format", ".editorconfig", ".pre-commit-config.yaml",
         "mkdocs.yml", "CODE_OF_CONDUCT.md", "CITATION.cff")


def sanitizers() -> list[str]:
    chosen = os.environ.get("ARRAYCOMM_BUILD_SANITIZE", "")
    return [f"-fsanitize={chosen}"] if chosen else []


def optimised(sanitize: list[str]) -> list[str]:
    return ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", *sanitize] if sanitize else ["-O3"]


class BuildEngine(build_ext):
    """Generates the cffi module's source, compiles what changed, links one extension."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for ext in self.extensions or []:
            ext.py_limited_api = LIMITED
            ext.sources = [os.path.relpath(path, ROOT) for path in build.sources()]
            ext.depends = [os.path.relpath(path, ROOT) for path in build.headers()]

    def build_extension(self, ext: Extension) -> None:
        self.find_compiler()
        # Objects of other flags have their own folder, so that each kind of build is incremental and builds never mix.
        flags = " ".join([*sanitizers(), *filter(None, map(os.environ.get, ("CC", "CFLAGS")))])
        folder = Path(self.build_temp, f"engine_{crc32(flags.encode()):08x}" if flags else "engine")
        generated = folder / "_engine.c"
        build.generate(generated)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        newest = max(Path(header).stat().st_mtime for header in [*ext.depends, __file__])
        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(
                pool.map(lambda path: self.compile_one(path, folder, newest), [str(generated), *ext.sources])
            )
        self.compiler.link_shared_object(objects, str(target), extra_postargs=["-pthread", *sanitizers()])

    def find_compiler(self) -> None:
        """Falls back to `cc`: a Python records the compiler that built it, which may be missing here."""
        wanted = self.compiler.compiler_so[0]
        if shutil.which(wanted):
            return
        if "CC" in os.environ or not shutil.which("cc"):
            raise CompileError(f"the C compiler {wanted} is not on PATH: install one (gcc or clang, as `cc`), or name one by CC")
        self.announce(f"{wanted}, with which this Python was built, is not on PATH: cc is used", INFO)
        for command in (self.compiler.compiler_so, self.compiler.linker_so):
            command[0] = "cc"

    def compile_one(self, source: str, folder: Path, newest_header: float) -> str:
        name = "_engine" if source.startswith(str(folder)) else source.replace(os.sep, "_")[: -len(".c")]
        target = folder / f"{name}.o"
        stamp = max(Path(source).stat().st_mtime, newest_header)
        if not target.exists() or target.stat().st_mtime <= stamp:
            self.run_compiler(source, target)
        return str(target)

    def run_compiler(self, source: str, target: Path) -> None:
        limited = ["-DPy_LIMITED_API=0x030b0000"] if LIMITED else []
        folders = [*build.FOLDERS, sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
        self.spawn([*self.compiler.compiler_so, *FLAGS, *optimised(sanitizers()), *limited,
                    *(f"-I{folder}" for folder in dict.fromkeys(map(str, folders))),
                    "-c", source, "-o", str(target)])

    def get_source_files(self) -> list[str]:
        return [path for ext in self.extensions for path in [*ext.sources, *ext.depends]]


class TaggedWheel(bdist_wheel):
    """One wheel for Python 3.11 and later."""

    def finalize_options(self) -> None:
        if LIMITED:
            self.py_limited_api = "cp311"
        super().finalize_options()


class WholeSdist(sdist):
    """Everything that builds and tests a wheel goes into the source archive, without a MANIFEST.in."""

    def make_distribution(self) -> None:
        for top in ARCHIVED:
            self.filelist.extend(str(path) for path in sorted(Path(top).rglob("*")) if archived(path))
        self.filelist.extend(name for name in FILES if Path(name).exists())
        super().make_distribution()

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for link in sorted(INSTALLED.iterdir()):  # of folders, which setuptools skips
            (target := base_dir / link).parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(link.readlink())


def archived(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".so", ".pyc", ".o"}
