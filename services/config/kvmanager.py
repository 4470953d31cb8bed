# ruff: noqa: RUF009 - setting() returns a dataclass field
"""What the KV manager can be told."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from gateway.scope import NAME_RULE, is_name
from kvmanager.accounts import Quota
from services.config.addresses import check_address, group_of
from services.config.service import ServiceConfig
from services.config.settings import (
    MAX_PORT,
    ConfigError,
    max_batched_tokens,
    max_sequences,
    setting,
    tenants_file,
)
from services.config.state import StateConfig

Policy = Literal["fcfs", "priority", "fair", "deadline"]
Preemption = Literal["auto", "swap", "recompute"]

_QUOTA_SETTINGS = {"reserved": "reserved_blocks", "max": "max_blocks", "weight": "weight"}


@dataclass(frozen=True, kw_only=True)
class KVManagerConfig(StateConfig, ServiceConfig):
    """The scheduler and the block tables."""

    port: int = setting(50052, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    executors: str = setting(
        "127.0.0.1:50053", "Addresses of the executors, with commas between; a name may stand for several."
    )
    executor_patience: float = setting(
        5.0,
        "Least seconds that an executor gets for a step before it counts as lost; more where its steps take long, and"
        " for its first ones.",
        minimum=0.1,
    )
    policy: Policy = setting(
        "fcfs", "Who goes first: by arrival, by priority, the tenant served least, or by deadline."
    )
    preemption: Preemption = setting(
        "auto", "What becomes of the blocks of a request that has to give way; auto takes the cheaper one."
    )
    tenants: str | None = setting(
        None,
        "What tenants and shared namespaces may have of each executor's blocks, and their weights, such as"
        " 'acme:reserved=100,max=500,weight=2;shared:docs:max=50'. What 'octavo tenant' says of a tenant goes before.",
    )
    tenants_file: str | None = tenants_file()
    max_batched_tokens: int = max_batched_tokens()
    max_sequences: int = max_sequences()
    max_waiting_requests: int = setting(1024, "Most requests that wait; more are refused. 0: any number.", minimum=0)
    max_waiting_tokens: int = setting(
        4_000_000, "Most tokens of their prompts, in all; more are refused. 0: any number.", minimum=0
    )
    max_waiting_requests_per_tenant: int = setting(
        0, "Most requests of one tenant that wait. 0: any number.", minimum=0
    )
    max_waiting_tokens_per_tenant: int = setting(
        0, "Most tokens of the prompts of one tenant's waiting requests. 0: any number.", minimum=0
    )
    prefix_caching: bool = setting(True, "Reuse the keys and values of equal prompt prefixes.")
    group: str = setting(
        "",
        "Name of the executors in the shared state; of the KV managers that have one group, one leads and the others"
        " stand by. When absent it is made of the executors' addresses.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "group", self.group or group_of(self.executor_addresses()))
        self.quotas()
        self.check_state()

    def executor_addresses(self) -> list[str]:
        """``host:port`` of each executor."""
        addresses = [address.strip() for address in self.executors.split(",")]
        for address in addresses:
            check_address("executors", address)
        return addresses

    def quotas(self) -> dict[str, Quota]:
        """What each tenant may have, by tenant, or by shared namespace as ``shared:NAME``."""
        quotas: dict[str, Quota] = {}
        for entry in (self.tenants or "").split(";"):
            if entry.strip():
                owner, _, settings = entry.strip().rpartition(":")
                if not is_name(owner.removeprefix("shared:")):
                    raise ConfigError(
                        f"tenants: {entry!r} is not TENANT:SETTING=NUMBER,SETTING=NUMBER; names are {NAME_RULE}"
                    )
                if owner in quotas:
                    raise ConfigError(f"tenants: {owner} is there twice")
                quotas[owner] = _parse_quota(owner, settings)
        return quotas


def _parse_quota(owner: str, settings: str) -> Quota:
    """Reads ``reserved=100,max=500,weight=2``."""
    values: dict[str, Any] = {}
    for part in settings.split(","):
        name, _, text = (each.strip() for each in part.partition("="))
        if name not in _QUOTA_SETTINGS or _QUOTA_SETTINGS[name] in values:
            raise ConfigError(f"tenants: {owner}: {part!r} is not one of reserved, max and weight, each once at most")
        try:
            values[_QUOTA_SETTINGS[name]] = float(text) if name == "weight" else int(text)
        except ValueError:
            kind = "a number" if name == "weight" else "a whole number of blocks"
            raise ConfigError(f"tenants: {owner}: {name} must be {kind}, not {text!r}") from None
    if not math.isfinite(values.get("weight", 1.0)):
        raise ConfigError(f"tenants: {owner}: weight must be a number above 0")
    try:
        return Quota(**values)
    except ValueError as error:
        raise ConfigError(f"tenants: {owner}: {error}") from error
