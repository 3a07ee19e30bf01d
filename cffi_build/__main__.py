"""`python -m cffi_build`: builds the engine into the source tree, compiling only what changed."""

from setuptools import setup

from cffi_build.packages import packages

setup(packages=packages(), script_args=["--quiet", "build_ext", "--inplace"])
