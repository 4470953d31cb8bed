"""A real Prometheus that scrapes a stack under test."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.services.e2e.processes import Processes, eventually

RULES = Path(__file__).parents[3] / "deploy" / "prometheus"


class Prometheus:
    """Scrapes twice a second, and evaluates the rules that are shipped. It is not started yet.

    Args:
        jobs: Scrape configurations by name.
    """

    def __init__(self, processes: Processes, program: str, folder: Path, jobs: Mapping[str, Mapping[str, Any]]) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
            "rule_files": [str(RULES / "recording.yml"), str(RULES / "alerts.yml")],
            "scrape_configs": [{"job_name": name, **job} for name, job in jobs.items()],
        }
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        flags = {
            "config.file": file,
            "storage.tsdb.path": folder / "data",
            "web.listen-address": self._url.removeprefix("http://"),
            "enable-feature": "exemplar-storage",
            "log.level": "warn",
        }
        command = [program, *(f"--{name}={value}" for name, value in flags.items())]
        self._process = processes.other("prometheus", command)
        self._jobs = jobs

    def start(self) -> None:
        """Returns when it has scraped all targets."""
        self._process.start()
        eventually(self._is_ready, what="Prometheus is ready")
        eventually(
            lambda: {sample["metric"]["job"] for sample in self.query("up == 1")} >= set(self._jobs), what="scrapes"
        )

    def _is_ready(self) -> bool:
        assert self._process.running, self._process.output()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def targets(self) -> list[str]:
        """Where it scrapes."""
        active: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return [target["scrapeUrl"] for target in active]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Samples as they are now."""
        result: list[dict[str, Any]] = self._get("query", query=promql)["result"]
        return result

    def value(self, promql: str) -> float | None:
        """The value of the only sample; None where there isn't exactly one."""
        samples = self.query(promql)
        return float(samples[0]["value"][1]) if len(samples) == 1 else None

    def wait_for(self, promql: str, good: Callable[[float], bool]) -> None:
        """Returns when there is exactly one sample, with a value that is good."""

        def there() -> bool:
            value = self.value(promql)
            return value is not None and good(value)

        eventually(there, what=f"{promql}: {self.value(promql)}")

    def wait_for_names(self, job: str, good: Callable[[set[str]], bool]) -> None:
        """Returns when what a job has brought is good."""
        eventually(lambda: good(self.names(job)), what=f"names of {job}")

    def names(self, job: str) -> set[str]:
        """Of all metrics that a job has brought, as they are stored."""
        found: Sequence[str] = self._get("label/__name__/values", **{"match[]": f'{{job="{job}"}}'})
        return set(found)

    def types(self) -> dict[str, str]:
        """Of metrics by name, as they were scraped."""
        metadata: Mapping[str, list[dict[str, str]]] = self._get("metadata")
        return {name: entries[0]["type"] for name, entries in metadata.items()}

    def exemplars(self, name: str) -> list[dict[str, str]]:
        """Labels of the exemplars of a metric."""
        found = self._get("query_exemplars", query=name, start="0", end="4000000000")
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def kill(self) -> None:
        self._process.kill()
