"""Holds docs/operations.md and docs/grafana.json to what the program does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from ortolan_runtime.engine import EngineOptions
from ortolan_runtime.stepper import Statistics
from ortolan_server.cli import main
from ortolan_server.metrics import Metrics
from ortolan_server.observation import UsageRecord
from ortolan_server.settings import ServerSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")


def help_of(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says of itself."""
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


def metric_names() -> set[str]:
    """Return the names of all families that the server exposes, counters with their suffix."""
    text = Metrics(lambda: {"m": Statistics()}, lambda: 0).text().decode()
    names = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    return {name for name in names if not name.endswith("_created")}


def test_every_limit_has_its_default_in_the_page() -> None:
    """As the options of serve have it."""
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([\d.]+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 12
    defaults = msgspec.structs.asdict(ServerSettings()) | msgspec.structs.asdict(EngineOptions())
    for option, value in rows:
        name = option.replace("-", "_")
        real = defaults[name] if name in defaults else defaults[f"{name}_s"]
        assert float(value) == float(real), option


def test_every_numeric_setting_is_in_the_page() -> None:
    """Except the port, which is no limit."""
    for name, value in msgspec.structs.asdict(ServerSettings()).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "port":
            option = name.removesuffix("_s").replace("_", "-")
            assert f"`--{option}`" in PAGE, name


def test_every_option_in_the_page_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Of serve or of keys add, or of the soak."""
    soak = "--minutes --streams --clients"
    known = help_of(["serve"], capsys) + help_of(["keys", "add"], capsys) + soak
    for option in set(re.findall(r"--[a-z-]+[a-z]", PAGE)):
        assert option in known, option


def test_every_metric_is_in_the_page_and_every_name_there_is_one() -> None:
    """Those of the process are Prometheus's own."""
    real = {name for name in metric_names() if name.startswith("ortolan_")}
    named = set(re.findall(r"`(ortolan_\w+)`", PAGE))
    assert named == real


def test_every_metric_of_the_dashboard_exists() -> None:
    """Histograms by their buckets."""
    board = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 15
    for query in queries:
        for name in re.findall(r"(?:ortolan|process)_\w+", query):
            assert name.removesuffix("_bucket") in metric_names(), name


def test_every_field_of_a_usage_record_is_in_the_page() -> None:
    """By name."""
    for name in UsageRecord.__struct_fields__:
        assert f"`{name}`" in PAGE, name
