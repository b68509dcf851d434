"""Checks before a command draws a picture."""

from __future__ import annotations

from pathlib import Path

import typer

from elasticutor.cli.output import note
from elasticutor.errors import BadValueError

_KINDS = (".svg", ".png", ".pdf")


def require_drawing(path: Path | None) -> None:
    """Refuse a picture that cannot be drawn, before minutes of measuring rather than after."""
    if path is None:
        return
    if path.suffix not in _KINDS:
        raise BadValueError("--plot", "end in .svg, .png or .pdf", path.name)
    if not path.absolute().parent.is_dir():
        raise BadValueError("--plot", "be in a directory that exists", str(path))
    try:
        import matplotlib as mpl
    except ImportError:
        note("drawing needs matplotlib: pip install 'elasticutor[plot]'")
        raise typer.Exit(2) from None
    mpl.use("Agg")  # no window
