from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import elasticutor
from elasticutor import errors
from elasticutor.errors import BadValueError, ElasticutorError, ProtocolError

ROOT = Path(elasticutor.__file__).parent
FACTS = ("upstream 'u'", "have sent less", 70_000, "wait for a grant")
CAUGHT = {"MisfitError", "ViolatedError", "DriverFailedError"}
"""Raised and caught inside one package, so outside the tree: no user meets them."""


def exceptions() -> Iterator[type[Exception]]:
    """All exception classes of the package, wherever they are defined."""
    for path in sorted(ROOT.rglob("*.py")):
        bases = [
            ast.unparse(base)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        ]
        if any(base.endswith(("Error", "Exception")) for base in bases):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = import_module(".".join(("elasticutor", *parts)))
            for found in vars(module).values():
                ours = isinstance(found, type) and found.__module__ == module.__name__
                if ours and issubclass(found, Exception):
                    yield found


EXCEPTIONS = list(exceptions())
KINDS = [kind for kind in EXCEPTIONS if issubclass(kind, ElasticutorError)]
PLAIN = [kind for kind in KINDS if kind.__init__ is ElasticutorError.__init__]
COMMON = [kind for kind in PLAIN if kind.__str__ is ElasticutorError.__str__]


def drawn() -> Iterator[tuple[str, str, str, str]]:
    """Each error of the drawing: its name, the error above it, the builtin and the module."""
    above: list[str] = []
    drawing = (errors.__doc__ or "").split("```")[1]
    for line in drawing.strip().splitlines():
        stem, name, builtin, said = re.fullmatch(  # type: ignore[union-attr]
            r"([│├└─ ]*)(\w+)(?: \((\w+)\))?(?: +(\S.*))?", line
        ).groups()
        depth = len(stem) // 4
        module = re.match(r"([a-z_.]+): ", said or "")
        home = f"elasticutor.{module[1]}" if module else "elasticutor.errors"
        yield name, above[depth - 1] if depth else "", builtin or "", home
        above[depth:] = [name]


def made(kind: type[ElasticutorError]) -> Any:
    if kind in PLAIN:
        return kind(*FACTS)
    if kind.__name__ == "OperatorError":
        return kind("counts", "not fail", "KeyError", "see", key="5", row="Row()", trace="in x")  # type: ignore[call-arg]
    return kind(*FACTS, said="No module named 'zmq'")  # type: ignore[call-arg]


def test_the_drawing_shows_every_error_its_place_its_builtin_and_its_module() -> None:
    real = set()
    for kind in KINDS:
        parent, *builtin = kind.__bases__
        above = "" if kind is ElasticutorError else parent.__name__
        real.add((kind.__name__, above, "".join(b.__name__ for b in builtin), kind.__module__))
    assert sorted(drawn()) == sorted(real)


def test_every_exception_that_a_user_can_meet_is_in_the_tree() -> None:
    assert {kind.__name__ for kind in EXCEPTIONS if kind not in KINDS} == CAUGHT


@pytest.mark.parametrize(
    "kind", [kind for kind in PLAIN if kind.__str__ is ElasticutorError.__str__]
)
def test_the_sentence_is_made_from_the_facts(kind: type[ElasticutorError]) -> None:
    error = kind(*FACTS)
    assert (error.who, error.must, error.got, error.hint) == FACTS
    assert str(error) == "upstream 'u' must have sent less; got 70000. Hint: wait for a grant"


def test_without_a_hint_the_sentence_ends_with_what_was_got() -> None:
    assert str(ElasticutorError("outputs", "be small", "big")) == "outputs must be small; got 'big'"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling_and_copying(kind: type[ElasticutorError]) -> None:
    error = made(kind)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 (our own)
        assert type(twin) is kind
        assert (vars(twin), twin.args) == (vars(error), error.args)
        assert str(twin) == str(error)


def test_a_changed_fact_changes_the_sentence() -> None:
    error = BadValueError("size", "be at least 0", -1)
    error.who = "size of a batch"
    assert str(error) == "size of a batch must be at least 0; got -1"


def test_bad_values_are_value_errors_and_all_others_runtime_errors() -> None:
    assert issubclass(BadValueError, ValueError)
    assert issubclass(ProtocolError, RuntimeError)
    for kind in KINDS:
        if kind is not ElasticutorError:
            assert issubclass(kind, BadValueError) != issubclass(kind, RuntimeError)
