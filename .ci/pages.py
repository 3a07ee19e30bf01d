"""For mkdocs: links from the documents to other files of the tree lead to copies of them; and public names are documented.

A public name, which is one in a module's `__all__`, without a place in the pages or without a docstring is a warning. `--strict`
makes it an error.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("arraycomm", "arraycomm.distributed", "arraycomm.dist2", "arraycomm.frameworks.jax", "arraycomm.frameworks.torch",
           "arraycomm.frameworks.ray")
CONSTANTS = {"ANY_TAG", "default_pg_timeout"}  # they stand in a text, as code
_log = logging.getLogger("mkdocs.hooks.pages")
_shown: set[str] = set()  # what has a docstring, and constants
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The text with such links changed; mkdocs calls it before a page is rendered."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", here, found[1]))
        if path.startswith("docs/") or not (ROOT / path).is_file():
            return found[0]  # of the site itself; or broken, which mkdocs says
        copy = f"source/{path}.txt"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(ROOT / path)))
        return f"]({posixpath.relpath(copy, here or '.')}"

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> None:
    """Looks whether what the page lists has a docstring; mkdocs calls it after a page is rendered."""
    _shown.update(CONSTANTS.intersection(re.findall(r"`(\w+)`", page.markdown)))
    for name in re.findall(r"^::: (\S+)", page.markdown, re.MULTILINE):
        contents = html.partition(f'id="{name}"')[2].partition('<div class="doc doc-contents')[2].partition(">")[2]
        if re.match(r"\s*<(p|ul|table)\b", contents):
            _shown.add(name)
        else:
            _log.warning("%s has no docstring (%s)", name, page.file.src_uri)


def exported(module: str) -> list[str]:
    """A module's `__all__`, read and not imported."""
    path = ROOT / module.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    lists = [node.value for node in ast.parse(text).body if isinstance(node, ast.Assign) and
             any(getattr(target, "id", "") == "__all__" for target in node.targets)]
    return [name for found in lists for name in ast.literal_eval(found)]


def on_post_build(*, config: Any) -> None:
    """Names that no page has. dist2 shares some with arraycomm.distributed; a constant stands in a text."""
    for module in MODULES:
        for name in exported(module):
            if _shown.isdisjoint({f"{module}.{name}", f"arraycomm.distributed.{name}" if module.endswith("dist2") else "", name}):
                _log.warning("no page documents %s.%s", module, name)
