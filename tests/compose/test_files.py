"""What docker-compose.yml and the Dockerfile say, read without an engine."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.config import ExecutorConfig, GatewayConfig, KVManagerConfig
from services.rpc import health

ROOT = Path(__file__).parents[2]
CONFIGS = {"GATEWAY": GatewayConfig, "KVMANAGER": KVManagerConfig, "EXECUTOR": ExecutorConfig}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return found


def test_every_target_is_in_the_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    targets = {name: service["build"]["target"] for name, service in services.items() if "build" in service}
    assert set(targets.values()) <= set(stages)
    assert targets["executor"] != targets["executor-gpu"], "only the GPU's needs a compiler"
    contexts = {service["build"]["context"] for service in services.values() if "build" in service}
    assert contexts == {"."}


def test_every_variable_is_a_setting(services: dict[str, dict[str, Any]]) -> None:
    seen = set()
    for service in services.values():
        for name in service.get("environment", {}):
            match = re.fullmatch(r"OCTAVO_(GATEWAY|KVMANAGER|EXECUTOR)_(\w+)", name)
            if match:
                assert match[2].lower() in {each.name for each in fields(CONFIGS[match[1]])}, name
                seen.add(match[2].lower())
    assert {"gpu_memory_utilization", "tensor_parallel_size", "max_batched_tokens", "kv_memory"} <= seen


def test_a_kv_manager_may_be_scaled_to_have_a_standby(services: dict[str, dict[str, Any]]) -> None:
    service = services["kvmanager"]
    assert health.STANDBY in service["healthcheck"]["test"]
    assert "container_name" not in service
    assert "ports" not in service
    assert services["gateway"]["environment"]["OCTAVO_GATEWAY_KVMANAGER"] == "kvmanager:50052"
    assert service["environment"]["OCTAVO_KVMANAGER_STATE"].startswith("redis://")


def test_the_gpu_s_executor_has_as_many_gpus_as_ranks_and_room_for_what_they_say(
    services: dict[str, dict[str, Any]],
) -> None:
    service = services["executor-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == service["environment"]["OCTAVO_EXECUTOR_TENSOR_PARALLEL_SIZE"]
    assert service["shm_size"]
    assert any(volume.endswith(":/cache") for volume in service["volumes"]), "kernels are compiled once"
