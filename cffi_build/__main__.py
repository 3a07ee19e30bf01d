"""`python -m cffi_build`: builds the engine into the source tree, compiling only what changed."""

from setuptools import setup

import cffi_build.requirement  # noqa: F401 - ends the build where setuptools is too old
from cffi_build.packages import packages

setup(packages=packages(), script_args=["--quiet", "build_ext", "--inplace"])
