"""The site of docs/: built strictly, whole, and loading nothing from elsewhere."""

from pathlib import Path

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

import mkdocs_hooks
from mkdocs_hooks import site_faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; what mkdocs warns of, or the hook finds, fails it."""
    made = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(made)))
    return made


def test_the_site_is_built_without_a_warning_and_every_link_leads_somewhere(site: Path) -> None:
    assert site_faults(site) == []


def test_every_page_of_docs_has_its_place_in_the_menu() -> None:
    home, *parts = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert home == {"kvsteer": "index.md"}
    placed = [page for part in parts for pages in part.values() for page in pages]
    written = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert sorted(page for page in placed if not page.startswith("tree/")) == written


def test_the_readme_comes_first_and_what_is_linked_outside_docs_comes_along(site: Path) -> None:
    assert "headroom and a warm prefix cache" in (site / "index.html").read_text()
    for path in (
        "tree/ARCHITECTURE.html",
        "tree/envoy/standalone/index.html",
        "tree/envoy/kubernetes/rbac.yaml",
    ):
        assert (site / path).is_file(), path


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="gone.html">x</a>', "page.html links to gone.html, which is not there"),
        ('<a href="#gone">x</a>', "page.html links to #gone, which is not there"),
        ('<p id="here"></p><a href="page.html#here">x</a>', None),
        ('<a href="https://example.com/">x</a>', None),
        (
            '<script src="https://cdn.example.com/x.js"></script>',
            "page.html loads https://cdn.example.com/x.js from another host",
        ),
        (
            '<link rel="stylesheet" href="//fonts.example.com/x">',
            "page.html loads //fonts.example.com/x from another host",
        ),
        ('<img src="gone.png">', "page.html links to gone.png, which is not there"),
    ],
)
def test_what_is_wrong_with_a_page_is_told(tmp_path: Path, html: str, fault: str | None) -> None:
    (tmp_path / "page.html").write_text(html)
    assert site_faults(tmp_path) == ([fault] if fault else [])


def test_a_style_sheet_that_loads_fonts_from_elsewhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text("@import url(https://fonts.example.com/css);")
    assert site_faults(tmp_path) == ["x.css loads from another host"]


def test_a_fault_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<a href="gone.html">x</a>')
    with pytest.raises(PluginError, match=r"gone\.html"):
        mkdocs_hooks.on_post_build({"site_dir": str(tmp_path)})


def test_links_in_code_are_left_as_they_are() -> None:
    class Page:
        class file:  # noqa: N801 - mkdocs' name
            src_uri = "index.md"

    text = "[a](docs/redis.md#x) [b](https://example.com/)\n\n```\n[c](docs/redis.md)\n```\n"
    assert mkdocs_hooks.on_page_markdown(text, Page) == (
        "[a](redis.md#x) [b](https://example.com/)\n\n```\n[c](docs/redis.md)\n```\n"
    )
