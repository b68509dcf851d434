"""What the pages name, exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import elasticutor

DOCS = Path(__file__).parent.parent / "docs"
ROOT = Path(elasticutor.__file__).parent


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of a page's tables, without headings."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "word" and set(row[0]) != {"-"}]


GLOSSARY = rows("glossary.md")
MODULES = sorted({name for row in GLOSSARY for name in re.findall(r"`([\w.]+)`", row[3])})


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_the_glossary_exists(module: str) -> None:
    path = ROOT.joinpath(*module.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_the_glossary_has_one_row_per_word() -> None:
    words = [word.strip() for row in GLOSSARY for word in row[0].split(",")]
    assert len(MODULES) > 50
    assert [word for word in words if words.count(word) > 1] == []


@pytest.mark.parametrize("package", ["core/executor", "core/scheduler", "core/run"])
def test_the_glossary_says_where_to_start_in_every_room_of_the_core(package: str) -> None:
    assert any(module.startswith(package.replace("/", ".")) for module in MODULES)
