"""What docs/simulation.md claims to predict: its command gives its figures, near the live ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticutor.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
_COMMAND = re.compile(r"^elasticutor (sim .*--shared-cpus.*)$", re.MULTILINE)
_ROW = re.compile(
    r"^\| (\d+) \| ([\d.]+) / ([\d.]+) / ([\d.]+) \| ([\d.]+) / ([\d.]+) / ([\d.]+) \|$"
)


def rows() -> list[tuple[str, list[float], list[float]]]:
    """The table: the rate, and latencies live and simulated."""
    found = [_ROW.match(line) for line in PAGE.read_text().splitlines()]
    numbers = [(row[1], [float(one) for one in row.groups()[1:]]) for row in found if row]
    return [(rate, each[:3], each[3:]) for rate, each in numbers]


def simulated(rate: str) -> tuple[list[float], float]:
    (command,) = _COMMAND.findall(PAGE.read_text())
    words = command.replace("--rate 1200", f"--rate {rate}").split()
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    latencies = [figures[f"latency_p{percent}_ms"] for percent in (50, 90, 99)]
    return latencies, figures["cpu_beyond_ms_per_tuple"]


def test_there_are_two_loads_to_compare() -> None:
    assert [rate for rate, _, _ in rows()] == ["1200", "1600"]


@pytest.mark.parametrize(("rate", "live", "claimed"), rows())
def test_the_simulation_has_the_latencies_that_the_page_says_near_the_live_ones(
    rate: str, live: list[float], claimed: list[float]
) -> None:
    found, beyond_ms = simulated(rate)
    # Another release of numpy may draw other keys.
    assert found == pytest.approx(claimed, rel=0.1)
    median, _, tail = (one / other for one, other in zip(found, live, strict=True))
    assert 0.65 < median < 1.1
    assert 0.35 < tail < 1.0
    if rate == "1200":
        assert beyond_ms == pytest.approx(0.192, rel=0.05)
