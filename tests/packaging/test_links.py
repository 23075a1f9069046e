"""Links of the documentation lead to files and headings that exist. Part of `make check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of GitHub; that of a repeated heading ends in a number."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
    return {f"{slug}-{n}" if (n := slugs[:i].count(slug)) else slug for i, slug in enumerate(slugs)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)", prose(page)):
        name, _, anchor = link.partition("#")
        if not name.startswith(("http:", "https:")):
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
