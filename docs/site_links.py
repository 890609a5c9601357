"""A hook of MkDocs: what pages link outside of docs/ becomes a page of the site, so links hold.

A link to a source file leads to a page that shows it; one to a folder, to a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
NO_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
FENCE = "~~~~~~"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", "": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that some page links and that is none of the site's."""
    wanted = set()
    for file in files.documentation_pages():
        text = Path(file.abs_src_path or "").read_text(encoding="utf-8")
        wanted |= {shown for link in LINK.findall(text) if (shown := _shown(file.src_uri, link))}
    for path in sorted(wanted):
        if files.get_file_from_path(_page_of(path)) is None:
            files.append(File.generated(config, _page_of(path), content=_text_of(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links there."""
    del config, files
    source = page.file.src_uri
    if source.startswith("source/"):
        return markdown

    def there(link: re.Match[str]) -> str:
        path = _shown(source, link[1])
        here = posixpath.dirname(source)
        return link[1] if path is None else posixpath.relpath(_page_of(path), here or ".")

    return LINK.sub(there, markdown)


def _shown(source: str, link: str) -> str | None:
    """What a link leads to, from the root of the project; None if it is a page or picture here."""
    if link.startswith(("/", "mailto")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link))
    is_ours = path.startswith("docs/") and path.endswith((".md", ".png", ".svg"))
    is_there = not path.startswith("..") and (ROOT / path).exists()
    return path if is_there and not is_ours else None


def _page_of(path: str) -> str:
    """A picture stays one."""
    return f"source/{path}" if path.endswith((".md", ".svg")) else f"source/{path}.md"


def _text_of(path: Path) -> str:
    name = path.relative_to(ROOT)
    if path.is_dir():
        names = "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir()) if one.is_file())
        return f"{NO_SEARCH}# {name}\n\n{names}\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".svg":
        return text
    if path.suffix == ".md":
        # Its links are from its own place, and are for readers of the repository.
        return NO_SEARCH + re.sub(r"\[([^\]\[]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    language = LANGUAGES.get(path.suffix, "text")
    return f"{NO_SEARCH}# {name}\n\n{FENCE}{language}\n{text}{FENCE}\n"
