"""Parts of pages that are made by code: between `<!-- generated: NAME -->` and `<!-- end -->`."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path


def check_generated(page: Path, generated: Mapping[str, Callable[[], str]]) -> None:
    """Compare each part with its function's text; with REWRITE=1 in the environment the page is rewritten first."""
    wanted = _with_generated(page.read_text(), generated)
    if os.environ.get("REWRITE") == "1":
        page.write_text(wanted)
    assert page.read_text() == wanted, f"{page.name} is behind the code: REWRITE=1 pytest tests/docs"


def _with_generated(text: str, generated: Mapping[str, Callable[[], str]]) -> str:
    for name, generate in generated.items():
        before, head, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert head, f"the page has no part {name!r}"
        assert end, f"the part {name!r} does not end"
        text = before + head + generate() + end + after
    return text
