import copy
import inspect
import pickle

import pytest

from elasticutor import errors
from elasticutor.errors import BadValueError, ElasticutorError, ProtocolError, StateFullError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
FACTS = ("upstream 'u'", "have sent less", 70_000, "wait for a grant")


@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_is_made_from_the_facts(kind: type[ElasticutorError]) -> None:
    error = kind(*FACTS)
    assert (error.who, error.must, error.got, error.hint) == FACTS
    assert str(error) == "upstream 'u' must have sent less; got 70000. Hint: wait for a grant"


def test_without_a_hint_the_sentence_ends_with_what_was_got() -> None:
    assert str(ElasticutorError("outputs", "be small", "big")) == "outputs must be small; got 'big'"


@pytest.mark.parametrize("kind", KINDS)
def test_facts_survive_pickling_and_copying(kind: type[ElasticutorError]) -> None:
    error = kind(*FACTS)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 (our own)
        assert type(twin) is kind
        assert (twin.who, twin.must, twin.got, twin.hint) == FACTS
        assert str(twin) == str(error)


def test_a_changed_fact_changes_the_sentence() -> None:
    error = BadValueError("size", "be at least 0", -1)
    error.who = "size of a batch"
    assert str(error) == "size of a batch must be at least 0; got -1"


def test_bad_values_are_value_errors_and_broken_protocols_runtime_errors() -> None:
    assert issubclass(BadValueError, ValueError)
    assert issubclass(ProtocolError, RuntimeError)
    for kind in KINDS:
        assert issubclass(kind, ElasticutorError)
        bases = (BadValueError, ProtocolError, StateFullError)
        leaf_of = [base for base in bases if issubclass(kind, base)]
        assert len(leaf_of) == (kind is not ElasticutorError)


def test_the_tree_at_the_top_of_the_module_names_every_error() -> None:
    tree = errors.__doc__
    assert tree is not None
    assert [kind.__name__ for kind in KINDS if kind.__name__ not in tree] == []
