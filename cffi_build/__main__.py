"""`python -m cffi_build`: builds the engine into the source tree, compiling only what changed. `wheels`: a release."""

import sys

from setuptools import setup

from cffi_build import wheels
from cffi_build.packages import packages

if sys.argv[1:2] == ["wheels"]:
    wheels.main(sys.argv[2:])
else:
    setup(packages=packages(), script_args=["--quiet", "build_ext", "--inplace"])
