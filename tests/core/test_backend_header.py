"""docs/reference/backend-c.md has every name of arraycomm_backend.h, and its example runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arraycomm

from . import api_pages

PAGE = api_pages.Page("backend-c.md")
HEADER = api_pages.Header("arraycomm_backend.h")


def test_the_page_has_every_name_of_the_header() -> None:
    words = HEADER.words() - {"ACOMM_BACKEND_H"}
    assert len(words) > 20 and words <= PAGE.names()


@pytest.mark.parametrize(("struct", "number"), [("acomm_operation", 5), ("acomm_header", 9), ("acomm_failure", 11),
                                                ("acomm_entries", 8)])
def test_the_page_has_every_field(struct: str, number: int) -> None:
    """In the rows of a table that follows the struct's name."""
    fields = HEADER.fields(struct)
    assert len(fields) == number, fields
    where = PAGE.text.index(f"\n`{struct}` ")
    rows = re.findall(r"^\| (`.*?) \|", PAGE.text[where:].split("\n\n| ")[1].partition("\n\n")[0], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(fields)


def test_the_page_names_no_constant_that_the_headers_lack() -> None:
    public = api_pages.Header("arraycomm.h").words() | {f"ACOMM_{kind}" for kind in api_pages.kinds()}
    assert PAGE.constants() <= HEADER.words() | public


@pytest.mark.parametrize("command", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["C", "C++"])
def test_the_header_stands_alone(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "alone.c").write_text('#include "arraycomm_backend.h"\nconst acomm_entries *use(acomm_failure *failure);\n')
    subprocess.run([*command, "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{arraycomm.get_include()}", "-c", "alone.c"],
                   cwd=tmp_path, check=True)


def test_the_pages_example_compiles_and_runs(tmp_path: Path) -> None:
    (c,), (half, program), (project,) = PAGE.blocks("c"), PAGE.blocks("python"), PAGE.blocks("toml")
    api_pages.library(tmp_path, "libaddition", c)
    (tmp_path / "addition.py").write_text(half)
    name, value = re.findall(r'^(\w+) = "(.*)"$', project, re.MULTILINE)[0]
    facts = tmp_path / "addition-1.0.dist-info"  # as pip would install it
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: addition\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[arraycomm.backends]\n{name} = {value}\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (0, "[[2.0, 1.0], [2.0, 1.0]]\n"), done.stderr
