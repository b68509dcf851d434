"""The pages about Structured Streaming are programs, and do what they say."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from elasticutor.spark import Cluster

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("structured-streaming.md", "when-not-to-use.md")
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """Some Python of a page, and what the page says that it prints."""

    code: str
    prints: str | None
    line: int

    def run(self, page: Path, names: dict[str, Any]) -> str:
        """What it does print; a traceback has the page's own line numbers."""
        source = compile("\n" * self.line + self.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(source, names)  # noqa: S102 - it is ours
        return printed.getvalue()


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(1)))
        for found in _BLOCK.finditer(text)
    ]


@pytest.fixture
def session(spark: SparkSession, own_cluster: Cluster) -> Iterator[SparkSession]:
    """As it was before, afterwards."""
    before = {name: str(spark.conf.get(name)) for name in (PROVIDER, PARTITIONS)}
    yield spark
    for query in spark.streams.active:
        query.stop()
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_a_program_that_prints_what_it_says(name: str, session: SparkSession) -> None:
    page = DOCS / name
    # Not a module that can be imported: its classes travel as a notebook's do.
    names: dict[str, Any] = {"__name__": "a_page"}
    try:
        for block in blocks(page):
            printed = block.run(page, names)
            if block.prints is not None:
                assert printed.strip() == block.prints.strip(), f"{name}, line {block.line}"
    finally:
        shutil.rmtree(names.get("folder", ""), ignore_errors=True)


@pytest.mark.parametrize("name", PAGES)
def test_no_python_and_no_output_of_a_page_is_missed(name: str) -> None:
    text = (DOCS / name).read_text()
    found = blocks(DOCS / name)
    assert len(found) == text.count("```python") > 0
    assert sum(block.prints is not None for block in found) == text.count("```text")
