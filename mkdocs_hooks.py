"""What mkdocs does to the pages beside building them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files outside of docs/ lead nowhere on the site: only their text is left."""
    folder = posixpath.dirname(page.file.src_uri)

    def unlinked(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(unlinked, markdown)
