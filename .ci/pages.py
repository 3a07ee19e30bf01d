"""For mkdocs: links from the documents to other files of the tree. On a code host they lead there; the site gets copies."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
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
