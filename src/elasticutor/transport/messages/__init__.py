"""What the processes of a cluster tell each other besides the core's own events and instructions.

The modules are by addressee. A *participant* of a run is a source task (`clicks.0`), an elastic
executor's main process (`counts.1`) or a sink (`out`).
"""

# ruff: noqa: F403 - a package whose modules define messages and nothing else

from elasticutor.transport.messages.queries import *
from elasticutor.transport.messages.to_driver import *
from elasticutor.transport.messages.to_nodes import *
from elasticutor.transport.messages.to_participants import *
from elasticutor.transport.messages.tuples import *
