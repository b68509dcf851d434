"""The processes of a run on its nodes: sources, main processes, tasks, sinks, nodes."""
