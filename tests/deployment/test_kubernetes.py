"""The manifests: that they fit each other and the program. tests/clients holds them to schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ortolan_runtime.stepper import Statistics
from ortolan_runtime.version import __version__
from ortolan_server.cli import parser
from ortolan_server.commands.registry import find_command
from ortolan_server.configuration import applied
from ortolan_server.keys import read_keys
from ortolan_server.metrics import Metrics
from ortolan_server.serve_flags import settings_of
from ortolan_server.settings import ServerSettings

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s"
MANIFESTS = {
    document["kind"]: document
    for path in FOLDER.glob("*.yaml")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_image_is_of_this_version() -> None:
    assert CONTAINER["image"].endswith(f"/ortolan:{__version__}")


def test_what_is_applied_exists() -> None:
    """All but the autoscaler, which wants an adapter."""
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert set(MANIFESTS["Kustomization"]["resources"]) == files - {
        "kustomization.yaml",
        "autoscaler.yaml",
    }


def test_the_container_starts_with_options_that_exist() -> None:
    command = find_command("serve")
    assert command is not None
    parsed = parser(command).parse_args(CONTAINER["args"])
    settings = settings_of(applied(parsed.configurable.settings(parsed, {})), {})
    assert settings.host == "0.0.0.0"
    assert settings.port == CONTAINER["ports"][0]["containerPort"]
    assert str(settings.keys_file).startswith(mounts()["keys"])
    assert CONTAINER["args"][1] == mounts()["bundle"]


def test_a_pod_has_time_to_drain() -> None:
    """What comes before SIGTERM, the grace, the last words and uvicorn's own end."""
    code = CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]
    waited = re.fullmatch(r"import time; time\.sleep\((\d+)\)", code)
    assert waited is not None
    needed = int(waited[1]) + ServerSettings().grace_s + 2 + 2
    assert POD["terminationGracePeriodSeconds"] > needed


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")],
)
def test_probes_ask_what_they_should(probe: str, path: str) -> None:
    """A draining server is alive and not ready: a liveness probe of /ready would kill it."""
    assert CONTAINER[probe]["httpGet"] == {"path": path, "port": CONTAINER["ports"][0]["name"]}


def test_everything_points_at_the_same_pods() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    target = MANIFESTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target["name"] == MANIFESTS["Deployment"]["metadata"]["name"]


def test_the_autoscaler_looks_at_a_figure_that_there_is() -> None:
    (metric,) = MANIFESTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert f"# TYPE {metric['pods']['metric']['name']} gauge\n" in figures()


def test_cores_are_asked_for_as_they_are_allowed() -> None:
    """Threads follow the limit: with fewer cores than that every step would wait for a quota."""
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    assert int(CONTAINER["resources"]["limits"]["cpu"]) >= 1


def test_a_service_cannot_set_our_variables() -> None:
    """Kubernetes would set ORTOLAN_PORT to tcp://…, for a service of that name."""
    assert POD["enableServiceLinks"] is False


def test_a_secret_with_this_mode_is_read(tmp_path: Path) -> None:
    """It is root's, and the group's to read."""
    (secret,) = (volume["secret"] for volume in POD["volumes"] if "secret" in volume)
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    path.chmod(secret["defaultMode"])
    assert read_keys(path) == ()


def mounts() -> dict[str, Any]:
    """Return where each volume is."""
    return {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}


def figures() -> str:
    """Return what /metrics tells of a server that does nothing."""
    return Metrics(lambda: {"m": Statistics()}, lambda: 0).text().decode()
