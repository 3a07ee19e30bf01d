"""The files in docs/guide/recipes: valid for the tools that read them, and consistent with the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arraycomm.core.bootstrap import environment

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "guide" / "recipes"


def loaded(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [*yaml.safe_load_all((RECIPES / name).read_text())]


def check_kubernetes(resource: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(resource, validator.latest_version(), strict=True)


def place(job: dict[str, Any], index: int) -> Any:
    """Where a pod of the job finds itself, by the variables that its template sets."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    environ = {row["name"]: row.get("value", "") for row in container["env"]}
    return environment.detect({**environ, "JOB_COMPLETION_INDEX": str(index)})


def check_job(job: dict[str, Any]) -> None:
    check_kubernetes(job)
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert [place(job, index)[1:3] for index in range(4)] == [(rank, spec["completions"]) for rank in range(4)]


def test_the_script_for_slurm() -> None:
    subprocess.run(["bash", "-n", str(RECIPES / "job.sh")], check=True)
    options = re.findall(r"^#SBATCH --([\w-]+)=\S+$", (RECIPES / "job.sh").read_text(), re.MULTILINE)
    assert {"nodes", "ntasks-per-node"} <= set(options)


def test_the_indexed_job() -> None:
    service, job = loaded("indexed-job.yaml")
    check_kubernetes(service)
    check_job(job)
    name = service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == name


def test_what_is_wrong_with_a_job_is_found() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    _, job = loaded("indexed-job.yaml")
    job["spec"]["completion"] = 4
    with pytest.raises(validator.ValidationError):
        check_kubernetes(job)


def test_the_jobset() -> None:
    """No package registry has the schema of JobSet: its jobs are checked, and the fields around them by name.

    On 2026-11-29 the file was valid by the schema in JobSet's repository (v1alpha2, fields that it lacks forbidden).
    """
    (jobset,) = loaded("jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) == {"failurePolicy", "network", "replicatedJobs"}
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert set(replicated) == {"name", "replicas", "template"}
    check_job({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ring"}, **replicated["template"]})


def test_prometheus_asks_for_what_the_page_serves() -> None:
    (config,) = loaded("prometheus.yml")
    (scrape,) = config["scrape_configs"]
    assert (scrape["metrics_path"], scrape["authorization"]["type"]) == ("/metrics", "Bearer")
    assert scrape["static_configs"] == [{"targets": ["127.0.0.1:25999"]}]


def test_the_board_shows_metrics_that_there_are() -> None:
    board = json.loads((RECIPES / "grafana.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"arraycomm_\w+", target["expr"])}
    served = set(re.findall(r'"(arraycomm_\w+)"', (ROOT / "arraycomm/monitor/metrics.py").read_text()))
    served |= {f"{name}_bucket" for name in served}
    assert len(asked) >= 8 and asked <= served
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_the_start_of_ranks_is_measured() -> None:
    done = subprocess.run([sys.executable, RECIPES / "startup.py", "2"], capture_output=True, text=True, timeout=120, check=True)
    assert re.fullmatch(r"2 ranks: the first init\(\), with its imports, [\d.]+ ms; later ones [\d.]+ ms; close\(\) [\d.]+ ms\n",
                        done.stdout)
