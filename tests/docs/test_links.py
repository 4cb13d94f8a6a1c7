"""The links of README.md and of docs lead to files and headings of the repository, and the index has every page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(text: str) -> list[str]:
    """The targets of a page's links, without code and without addresses elsewhere."""
    return [target for target in _LINK.findall(_CODE.sub("", text)) if "://" not in target]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for target in links(text):
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        if not place.exists() or not place.is_relative_to(ROOT) or (anchor and not _has(place, anchor, page, text)):
            found.append(target)
    return found


def _has(place: Path, anchor: str, page: Path, text: str) -> bool:
    """Whether the page at `place` has this anchor; a file of code has anchors of lines."""
    return place.suffix != ".md" or anchor in anchors(text if place == page else place.read_text())


def test_links_lead_to_files_and_headings() -> None:
    found = {str(page.relative_to(ROOT)): broken(page, page.read_text()) for page in PAGES}
    assert {page: targets for page, targets in found.items() if targets} == {}


def test_a_broken_link_is_found() -> None:
    text = "# A page\n[a](docs/none.md) [b](docs/python.md#no-heading) [c](#a-page) [d](docs/README.md) `[e](none)`"
    assert broken(ROOT / "README.md", text) == ["docs/none.md", "docs/python.md#no-heading"]


def test_the_index_has_every_page() -> None:
    """Decisions have an index of their own."""
    index = {(DOCS / target.partition("#")[0]).resolve() for target in links((DOCS / "README.md").read_text())}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions" or page.name == "README.md"}
    assert sorted(str(page.relative_to(DOCS)) for page in pages - index - {DOCS / "README.md"}) == []
