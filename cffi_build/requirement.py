"""Ends a build by a setuptools that does not understand pyproject.toml, whose own error names neither itself nor the remedy."""

import sys

import setuptools

_NEEDED = 77

if int(setuptools.__version__.partition(".")[0]) < _NEEDED:
    sys.exit(f"building arraycomm needs setuptools >= {_NEEDED}; {sys.executable} has {setuptools.__version__}, and nothing was "
             "built: `pip install -U setuptools`, or `pip install .` without --no-build-isolation, which brings its own")
