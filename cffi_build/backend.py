"""setuptools' build backend under a name in this tree, because only such a backend may import cffi_build."""

from functools import partial

import setuptools
from setuptools.build_meta import *  # noqa: F403
from setuptools.build_meta import build_editable, get_requires_for_build_editable, prepare_metadata_for_build_editable

from cffi_build.packages import packages

# setuptools calls this without arguments if there is no setup.py. pyproject.toml cannot express that packages are found in three
# folders, two of which are installed inside the first.
setuptools.setup = partial(setuptools.setup, packages=packages())

__all__ = [  # noqa: F405
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
