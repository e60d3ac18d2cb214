"""The site of docs/ made whole: pages and files that it links to outside docs/ come along, and the result is checked.

README.md is the first page. What is linked and stands elsewhere in the tree is below `tree/`.
A link that leads nowhere, or a page that loads anything from another host, ends the build (`make docs`).
"""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT: Final = Path(__file__).resolve().parent
#: The page that `/` shows.
HOME: Final = "README.md"
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what is linked from a page, and from what was added, until nothing is missing."""
    waiting = [HOME, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    known = set(waiting)
    files.append(_file(HOME, config))
    while waiting:
        page = waiting.pop()
        for target in sorted(_targets(page) - known):
            known.add(target)
            files.append(_file(target, config))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has its pages, not as the tree has its files; what stands in code is left as it is."""
    here = page.file.src_uri
    source = _source(here)
    parts = _FENCE.split(markdown)
    return "".join(
        part if number % 2 else _LINK.sub(lambda link: f"]({_moved(link[1], source, here)})", part)
        for number, part in enumerate(parts)
    )


def on_post_build(config: Any, **_: Any) -> None:
    """Check every link of the site as a browser would follow it. Raises PluginError naming what is wrong."""
    faults = site_faults(Path(config["site_dir"]))
    if faults:
        raise PluginError("\n".join(faults))


def site_faults(site: Path) -> list[str]:
    """What is wrong with a built site: links to nowhere, and what is loaded from elsewhere; a sentence each."""
    pages = {path: _Page.of(path) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site)
        faults += [f"{name} loads {url} from another host" for url in page.loads if urlsplit(url).netloc]
        if name.name == "404.html":
            continue  # its links begin at the root of whatever serves it
        for url in [*page.links, *(url for url in page.loads if not urlsplit(url).netloc)]:
            if not _leads_somewhere(url, path, pages):
                faults.append(f"{name} links to {url}, which is not there")
    for sheet in sorted(site.rglob("*.css")):
        if re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")):
            faults.append(f"{sheet.relative_to(site)} loads from another host")
    return faults


class _Page(HTMLParser):
    """What a page links to and loads, and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()

    @classmethod
    def of(cls, path: Path) -> "_Page":
        """A page read."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


def _leads_somewhere(url: str, path: Path, pages: dict[Path, _Page]) -> bool:
    """Whether a relative link has a file and, where it names one, a place in it; others are not ours to know."""
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].places


def _targets(page: str) -> set[str]:
    """Files of the tree that a page links to, by their paths from its root."""
    text = _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = {_path_of(link, page) for link in _LINK.findall(text)}
    return {path for path in found if path and (ROOT / path).is_file()}


def _path_of(link: str, page: str) -> str:
    """The path in the tree that a link on a page means; "" for one within the page or to another host."""
    path = link.partition("#")[0]
    if not path or urlsplit(link).scheme:
        return ""
    return os.path.normpath(os.path.join(os.path.dirname(page), path))


def _place(path: str) -> str:
    """Where a file of the tree is in the site, as mkdocs names its sources."""
    if path == HOME:
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"tree/{path}"


def _source(place: str) -> str:
    """The file of the tree that is at a place of the site."""
    if place == "index.md":
        return HOME
    return place.removeprefix("tree/") if place.startswith("tree/") else f"docs/{place}"


def _moved(link: str, source: str, here: str) -> str:
    path = _path_of(link, source)
    if not path:
        return link
    moved = os.path.relpath(_place(path), os.path.dirname(here) or ".")
    return "#".join([moved, *link.split("#")[1:]])


def _file(path: str, config: Any) -> File:
    """A file of the tree as one of the site's; those that mkdocs.yml does not name are reached by links alone."""
    file = File.generated(config, _place(path), abs_src_path=str(ROOT / path))
    file.inclusion = InclusionLevel.NOT_IN_NAV
    return file
