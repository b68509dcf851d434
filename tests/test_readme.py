"""What the README shows, works."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticutor.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_examples_in_the_readme_run() -> None:
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_commands_in_the_readme_exist() -> None:
    lines = re.findall(
        r"^\.venv/bin/elasticutor (.+?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(lines) >= 4
    for line in lines:
        words = [word for word in line.split() if not word.startswith("-") and not word.isdigit()]
        help_text = CliRunner().invoke(app, [*words, "--help"])
        assert help_text.exit_code == 0, line
        for option in re.findall(r"--[a-z-]+", line):
            assert option in help_text.output, line


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", page.read_text(), re.MULTILINE):
            assert (target[0] or target[1]) in targets, page
