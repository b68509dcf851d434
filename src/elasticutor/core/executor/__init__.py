"""An elastic executor: the main process of the paper's section 3, as state machines without I/O."""
