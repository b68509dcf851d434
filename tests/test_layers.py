"""Who may import whom, and how large things are: what keeps the core pure and the tree readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticutor

ROOT = Path(elasticutor.__file__).parent
IMPURE = {
    "asyncio",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "pyspark",
    "queue",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "zmq",
}

DISTRIBUTIONS = {"zmq": "pyzmq"}
"""Names of packages whose modules have another one."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def pure() -> list[Path]:
    """All of core and state but what is there to open files."""
    everything = modules("core") + modules("state")
    return [
        p
        for p in everything
        if p.stem != "lmdb_backend" and p.parent.name not in ("checkpoint", "inspection")
    ]


@pytest.mark.parametrize("path", pure(), ids=lambda path: path.stem)
def test_core_and_state_have_no_clock_no_randomness_and_no_io(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE


@pytest.mark.parametrize("path", modules("core") + modules("state"), ids=lambda path: path.stem)
def test_core_and_state_know_nothing_of_those_who_drive_them(path: Path) -> None:
    ours = {name for name in imports(path) if name.startswith("elasticutor.")}
    allowed = ("elasticutor.core", "elasticutor.state", "elasticutor.errors")
    assert all(name.startswith(allowed) for name in ours)


def test_only_the_spark_package_imports_pyspark() -> None:
    for path in ROOT.rglob("*.py"):
        if "spark" not in path.relative_to(ROOT).parts:
            assert "pyspark" not in {name.split(".")[0] for name in imports(path)}, path


def test_only_the_list_of_commands_names_the_laboratory() -> None:
    named = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "lab" not in path.relative_to(ROOT).parts and "elasticutor.lab" in path.read_text()
    }
    assert named == {"cli/app.py"}


def test_only_the_command_line_imports_typer_and_rich() -> None:
    for path in ROOT.rglob("*.py"):
        if "cli" not in path.relative_to(ROOT).parts:
            assert not {name.split(".")[0] for name in imports(path)} & {"typer", "rich"}, path


def test_what_is_imported_outside_the_extras_is_a_dependency() -> None:
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    imported: dict[str, set[str]] = {"": set(), "spark": set()}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if not {"cli", "lab"} & set(parts):
            names = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
            imported["spark" if "spark" in parts else ""] |= names - {"elasticutor"}
    needed = {DISTRIBUTIONS.get(name, name) for name in imported[""]}
    assert needed == distributions(project["dependencies"])
    beyond = {DISTRIBUTIONS.get(name, name) for name in imported["spark"]} - needed
    assert beyond <= distributions(extras["spark"])
    assert not distributions(extras["cli"]) & distributions(project["dependencies"])


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}


def loaded(code: str, *suspects: str) -> list[str]:
    """Run code in a fresh interpreter; return which of these modules it has loaded."""
    code += f"\nimport sys; print(*(m for m in {suspects!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_working_with_the_core_loads_neither_the_command_line_nor_matplotlib() -> None:
    code = "import elasticutor.core.executor.executor, elasticutor.lab.check.runner"
    assert loaded(code, "typer", "rich", "matplotlib", "pyspark") == []


def test_what_spark_executors_load_needs_neither_the_command_line_nor_the_laboratory() -> None:
    names = []
    for package in ("driver", "process", "sinks", "sources", "spark", "state", "transport"):
        for path in modules(package):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(("elasticutor", *parts)).removesuffix(".__init__"))
    assert {"elasticutor.process.main", "elasticutor.spark.elastic"} <= set(names)
    code = f"from elasticutor import *; import {', '.join(names)}"
    assert loaded(code, "typer", "rich", "elasticutor.cli", "elasticutor.lab") == []


# How large things are, and what they are called


def test_no_module_has_more_than_500_lines() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > 500} == {}


def test_no_package_has_more_than_15_modules_on_one_floor() -> None:
    floors = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(floor.relative_to(ROOT)): n for floor, n in floors.items() if n > 15} == {}


def test_no_public_class_name_stands_for_two_things() -> None:
    names = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
