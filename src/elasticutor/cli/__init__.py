"""The command line, `elasticutor`; its libraries come with the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what to install if its libraries are missing."""
    try:
        from elasticutor.cli import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        hint = "pip install 'elasticutor[cli]'"
        sys.stderr.write(f"elasticutor's command line needs {missing}: {hint}\n")
        sys.exit(2)
    app.main()
