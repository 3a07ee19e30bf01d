"""What pyproject.toml cannot say: all else is there."""

from setuptools import setup

from cffi_build.packages import packages

setup(packages=packages())
