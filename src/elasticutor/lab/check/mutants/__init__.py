"""The checker checked: bugs put in by hand, one at a time, that it must find.

Each mutant replaces one method by a version with a mistake in it, of the kind one makes. A checker
that lets one of them through for hundreds of seeds is not worth its green light.
"""

from elasticutor.lab.check.mutants.ends import SINKS, SOURCES
from elasticutor.lab.check.mutants.epochs import ENDING, INTERRUPTING
from elasticutor.lab.check.mutants.executor import ESSENTIAL, FURTHER
from elasticutor.lab.check.mutants.fencing import FENCING
from elasticutor.lab.check.mutants.life import LIFE

ALL = (*ESSENTIAL, *FURTHER, *INTERRUPTING, *ENDING, *FENCING, *SOURCES, *SINKS, *LIFE)
