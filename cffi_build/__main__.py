"""`python -m cffi_build`: builds the engine into the source tree, compiling only what changed. `wheels`, `release`: see there."""

import sys

from cffi_build import release, wheels

COMMANDS = {"wheels": wheels.main, "release": release.main}

if sys.argv[1:2] and sys.argv[1] in COMMANDS:
    COMMANDS[sys.argv[1]](sys.argv[2:])
else:  # the subcommands above need only pip; a build needs the build requirements
    from setuptools import setup

    from cffi_build.packages import packages

    setup(packages=packages(), script_args=["--quiet", "build_ext", "--inplace"])
