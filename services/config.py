# ruff: noqa: RUF009 - setting() returns a dataclass field
"""What each process can be told: names, defaults, limits. The only module that reads files or the environment for it.

A setting comes from the first of these that gives it: command-line flag, environment (``OCTAVO_<COMMAND>_<SETTING>``),
TOML file, the default written here. The command line derives its options from the data classes below.
"""

import math
import os
import re
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from executor.errors import SettingsError
from executor.memory.memory_budget import AUTO, CPU_KV_MEMORY, GPU_MEMORY_UTILIZATION, parse_budget
from executor.settings import MAX_BATCHED_TOKENS, MAX_SEQUENCES
from gateway.scope import NAME_RULE, is_name
from kvmanager.accounts import Quota
from services.tls_files import TlsFiles

LogLevel = Literal["debug", "info", "warning", "error"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Decoder = Literal["auto", "native", "torch"]
AttentionBackend = Literal["auto", "triton", "cpu", "reference"]
Quantize = Literal["none", "int8", "int4"]
KvDtype = Literal["auto", "int8", "fp8"]
Policy = Literal["fcfs", "priority", "fair", "deadline"]
Preemption = Literal["auto", "swap", "recompute"]

EMBEDDED_STATE = "embedded"
MAX_PORT = 65535
MIN_MESSAGE_BYTES = 1024


class ConfigError(Exception):
    """A process cannot start as it was told to: the message is one line for the person who told it."""


def setting(
    default: Any = ...,
    help: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    envvar: str | list[str] | None = None,
) -> Any:
    """One field of a configuration.

    Args:
        default: ``...`` makes the field required.
        help: One line for ``--help``.
        minimum: Least allowed value.
        maximum: Greatest allowed value.
        envvar: The environment variable that gives the value, or several, of which the first that is set counts.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "envvar": envvar}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def _max_batched_tokens() -> Any:
    return setting(
        MAX_BATCHED_TOKENS,
        "Token budget of one step, decodes and prefill together. The KV manager's and the executor's, which keeps"
        " memory for it on a GPU; the smaller one counts.",
        minimum=1,
    )


def _max_sequences() -> Any:
    return setting(
        MAX_SEQUENCES, "Most sequences that run at once; of the KV manager and the executor likewise.", minimum=1
    )


def _tenants_file() -> Any:
    return setting(
        None,
        "File with tenants and their hashed API keys, as 'octavo tenant --tenants-file' writes it, in place of those in"
        " the state store. The gateway's and the KV manager's.",
    )


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What every process has."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(0, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    drain_seconds: float = setting(30.0, "Most time that running requests get to finish at shutdown.", minimum=0)
    log_level: LogLevel = setting("info", "Least severe messages to log.")
    watchdog_seconds: float = setting(
        30.0, "The process ends, to be started anew, when its event loop has been stuck for so long.", minimum=1.0
    )
    otlp_endpoint: str | None = setting(
        None, "Where to send traces (OTLP over gRPC); off when absent.", envvar="OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    tls_cert: str | None = setting(
        None, "PEM file with this service's certificate, for TLS between the services; octavo certs makes some."
    )
    tls_key: str | None = setting(None, "PEM file with the certificate's private key.")
    tls_ca: str | None = setting(None, "PEM file with the authorities that the services' certificates are signed by.")

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, each.type, each.metadata, getattr(self, each.name))
        _check_together(self, "tls_cert", "tls_key", "tls_ca")

    @property
    def address(self) -> str:
        """``host:port``, as gRPC wants it."""
        return join_address(self.host, self.port)

    @property
    def tls(self) -> TlsFiles | None:
        """Files of what this service shows other services; None: it speaks to them in plain text."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(Path(self.tls_cert), Path(self.tls_key), Path(self.tls_ca))

    @property
    def server_tls(self) -> TlsFiles | None:
        """Files of what it shows its own clients; None: they are served in plain text."""
        return self.tls


@dataclass(frozen=True, kw_only=True)
class StateConfig:
    """Where shared state lives; for each process that has any."""

    state: str = setting(
        EMBEDDED_STATE,
        "Where shared state lives: embedded (in this process), or a redis://, rediss:// or unix:// URL without a"
        " password.",
    )
    state_password_file: str | None = setting(
        None, "File with the password of the state store; $OCTAVO_STATE_PASSWORD when absent."
    )

    def check_state(self) -> None:
        """Refuses what is neither `embedded` nor a URL that can be used, without repeating what may be a secret.

        Raises:
            ConfigError: Naming the setting.
        """
        if self.state != EMBEDDED_STATE:
            _check_state_url(self.state)
            self.state_password()

    def state_password(self) -> str | None:
        """The password, read anew, so that it is no part of this object and of what shows it.

        Raises:
            ConfigError: The file can't be read.
        """
        if self.state_password_file is None:
            return os.environ.get("OCTAVO_STATE_PASSWORD") or None
        try:
            return Path(self.state_password_file).read_text("utf-8").rstrip("\r\n") or None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise ConfigError(f"state_password_file: {self.state_password_file}: {reason}") from None


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(StateConfig, ServiceConfig):
    """The public server: text in, text out."""

    port: int = setting(50051, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    model: str = setting(help="Model folder or GGUF file (its tokenizer is used), or smollm2 for the demo model.")
    model_name: str = setting("", "Name that clients call the model by; the folder's or file's name when absent.")
    kvmanager: str = setting(
        "127.0.0.1:50052",
        "Addresses of the KV manager and its standbys, with commas between; a name may stand for several. Semicolons"
        " separate groups of executors that have one each.",
    )
    kvmanager_patience: float = setting(
        20.0, "Seconds for which requests wait for a KV manager that is away, before they fail.", minimum=0
    )
    token_log_seconds: float = setting(
        600.0,
        "For how long a stream that broke can be resumed, with what it was answered kept where the state is; 0: not at"
        " all.",
        minimum=0,
    )
    max_message_bytes: int = setting(4 * 1024 * 1024, "Longest request message taken.", minimum=MIN_MESSAGE_BYTES)
    max_responses_per_second: float | None = setting(
        None,
        "Responses a second, over all streams, from which on tokens of one stream that follow one another closely leave"
        " together, at most 0.2 s later; 125 for each core when absent.",
        minimum=1.0,
    )
    trusted_identity: bool = setting(
        False,
        "Take tenant and app from the call's metadata (octavo-tenant, octavo-app), set by a proxy in front that can be"
        " trusted; all callers are one tenant when off.",
    )
    shared_namespaces: str | None = setting(
        None, "Which tenants joined which shared cache namespaces, such as 'docs=acme,beta;law=acme'."
    )
    tenants_file: str | None = _tenants_file()
    insecure: bool = setting(
        False,
        "Listen elsewhere than on loopback, too, while no tenant is configured and whoever comes is served without a"
        " key.",
    )
    public_tls_cert: str | None = setting(
        None, "PEM file with the certificate that clients see; that of tls_cert when absent."
    )
    public_tls_key: str | None = setting(None, "PEM file with that certificate's private key.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_together(self, "public_tls_cert", "public_tls_key")
        self.kvmanager_groups()
        self.check_state()
        self.namespace_members()
        object.__setattr__(self, "model_name", self.model_name or model_name_of(self.model))

    @property
    def server_tls(self) -> TlsFiles | None:
        if self.public_tls_cert is None or self.public_tls_key is None:
            return self.tls
        return TlsFiles(Path(self.public_tls_cert), Path(self.public_tls_key), setting="public_tls")

    def kvmanager_groups(self) -> list[list[str]]:
        """``host:port`` of each group's KV manager and its standbys."""
        groups = [[address.strip() for address in group.split(",")] for group in self.kvmanager.split(";")]
        for address in (address for group in groups for address in group):
            check_address("kvmanager", address)
        return groups

    def namespace_members(self) -> dict[str, frozenset[str]]:
        """The tenants that joined each shared namespace."""
        members: dict[str, frozenset[str]] = {}
        for entry in (self.shared_namespaces or "").split(";"):
            if not entry.strip():
                continue
            namespace, _, tenants = entry.strip().partition("=")
            if namespace in members or not all(is_name(name) for name in (namespace, *tenants.split(","))):
                raise ConfigError(
                    f"shared_namespaces: {entry!r} is not one NAME=TENANT,TENANT for each namespace;"
                    f" names are {NAME_RULE}"
                )
            members[namespace] = frozenset(tenants.split(","))
        return members


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
    tenants_file: str | None = _tenants_file()
    max_batched_tokens: int = _max_batched_tokens()
    max_sequences: int = _max_sequences()
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
        object.__setattr__(self, "group", self.group or _group_of(self.executor_addresses()))
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


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig(ServiceConfig):
    """The model and its key/value memory."""

    port: int = setting(50053, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    model: str = setting(help="Model folder or GGUF file, or smollm2 for the demo model.")
    model_name: str = setting("", "Name that clients call the model by; the folder's or file's name when absent.")
    device: Device = setting("auto", "Where the model runs; auto takes a GPU where there is one.")
    dtype: Dtype = setting("auto", "Number format of weights, keys and values; auto takes what the device does best.")
    block_size: int = setting(16, "Tokens in a block of key/value memory.", minimum=1)
    kv_memory: str = setting(
        AUTO,
        "Key/value memory: an amount such as 512MiB, a share of what is free, 40%, or auto: on a GPU what"
        f" gpu_memory_utilization leaves, on a CPU {CPU_KV_MEMORY}.",
    )
    gpu_memory_utilization: float | None = setting(
        None,
        "Share of a GPU's memory that may be in use, by other processes too; key/value memory (auto) is what weights"
        f" and the largest step leave of it. {GPU_MEMORY_UTILIZATION:g} when absent; refused on a CPU.",
        minimum=0.01,
        maximum=1.0,
    )
    host_memory: str = setting(
        "256MiB",
        "Host memory that key/value blocks move to and back: an amount, a share of what is free, or 0 for none.",
    )
    max_batched_tokens: int = _max_batched_tokens()
    max_sequences: int = _max_sequences()
    max_model_len: int | None = setting(
        None, "Most tokens of a prompt and its answer together; the model's own limit when absent.", minimum=1
    )
    threads: int | None = setting(None, "CPU threads of the model; as many as there are cores when absent.", minimum=1)
    tensor_parallel_size: int = setting(
        1,
        "Processes that compute the model together, each with its part of the weights and of the key/value heads: one"
        " for each GPU, from the first on. On a CPU they share threads and memory.",
        minimum=1,
    )
    quantize: Quantize = setting("none", "Keep the weights in int8 or int4 on a CPU: faster, a little less exact.")
    kv_dtype: KvDtype = setting(
        "auto",
        "Number format of keys and values; auto is the model's. int8 (native decoder on a CPU) and fp8 (GPUs of compute"
        " capability 8.9 and newer) take half of bfloat16.",
    )
    decoder: Decoder = setting("auto", "What computes the model; auto is native code on a CPU, and torch elsewhere.")
    attention_backend: AttentionBackend = setting(
        "auto",
        "Attention over block tables of the decoder in torch; auto is triton on a GPU where Triton can run, else"
        " reference, which is slow.",
    )
    cuda_graphs: bool = setting(
        True,
        "Record decode steps of some sizes of batch at start, so that a GPU computes them without being told of each"
        " kernel; takes some memory and some seconds.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kv_memory", "host_memory"):
            if getattr(self, name).strip().isdigit():  # a bare number is bytes; the executor wants a unit
                object.__setattr__(self, name, f"{getattr(self, name)}B")
        if self.kv_memory != AUTO:
            self.kv_memory_bytes(0)
        self._bytes("host_memory", 0, may_be_nothing=True)
        object.__setattr__(self, "model_name", self.model_name or model_name_of(self.model))

    def kv_memory_bytes(self, free_bytes: int) -> int:
        """Bytes for keys and values.

        Args:
            free_bytes: What is free on the device; only a share (``40%``) depends on it.
        """
        return self._bytes("kv_memory", free_bytes)

    def _bytes(self, name: str, free_bytes: int, *, may_be_nothing: bool = False) -> int:
        text = getattr(self, name)
        try:
            return parse_budget(text, lambda: free_bytes, name=name, may_be_nothing=may_be_nothing)
        except SettingsError as error:
            message = f"{name}: neither an amount like 512MiB nor a share like 40%: {text!r}"
            raise ConfigError(message) from error


def _check_state_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ConfigError("state: not a URL such as redis://host:6379/0") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError("state: neither 'embedded' nor a redis://, rediss:// or unix:// URL")
    if parts.scheme != "unix" and (not parts.hostname or not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigError("state: not a URL such as redis://host:6379/0")
    if parts.password is not None or "password" in options:
        raise ConfigError(
            "state: the URL must not hold a password, which other users of the machine could read; give it in the file"
            " of state_password_file, or in OCTAVO_STATE_PASSWORD"
        )
    if unknown := sorted(options.keys() - _STATE_URL_OPTIONS):
        raise ConfigError(f"state: the URL may have the options {', '.join(_STATE_URL_OPTIONS)}, not {unknown[0]!r}")


_STATE_URL_OPTIONS = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

_QUOTA_SETTINGS = {"reserved": "reserved_blocks", "max": "max_blocks", "weight": "weight"}


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


def model_name_of(path: str) -> str:
    """Name of a model that was given none: its folder's name, or its file's without ``.gguf``."""
    return Path(os.path.abspath(path)).name.removesuffix(".gguf")


def join_address(host: str, port: int) -> str:
    """``host:port``; an IPv6 host gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _group_of(addresses: Sequence[str]) -> str:
    """The same on whatever machine; of loopback addresses, which are others on each machine, with its name."""
    group = ",".join(sorted(addresses))
    return f"{socket.gethostname()}/{group}" if any(map(_is_loopback, addresses)) else group


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(name: str, address: str) -> None:
    """Refuses what is not ``host:port``.

    Raises:
        ConfigError: Naming the setting.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise ConfigError(f"{name}: not a host:port address: {address!r}")


def cache_folder() -> Path:
    """Where fetched models and converted weights are kept: ``$OCTAVO_CACHE``, or ``~/.cache/octavo``."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")


def read_api_key(file: str | None) -> str | None:
    """The key that a client calls with: from a file, else from ``$OCTAVO_API_KEY``; never from the command line.

    Raises:
        ConfigError: The file cannot be read.
    """
    if file is None:
        return os.environ.get("OCTAVO_API_KEY") or None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def read_pem(name: str, path: str | None) -> bytes | None:
    """What is in the file that a setting names, if it names one.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {path}: {error.strerror}") from error


def check_no_certificates(tables: Mapping[str, Any]) -> None:
    """Refuses certificates that a stack's processes would find by themselves, unknown to who starts them.

    Args:
        tables: Of the TOML file.

    Raises:
        ConfigError: There are some.
    """
    for command in ("gateway", "kvmanager", "executor"):
        for name in ("tls_cert", "public_tls_cert"):
            variable = f"OCTAVO_{command}_{name}".upper()
            if os.environ.get(variable) or name in tables.get(command, {}):
                raise ConfigError(
                    f"{variable}, or {name} in [{command}]: octavo serve takes --tls-dir and --public-tls-cert"
                )


def read_toml(path: Path, commands: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """Settings from a TOML file with one table for each command, such as ``[executor]``.

    Args:
        path: The file.
        commands: Every command with the settings it knows.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown table or setting.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name!r} stands outside a table such as [executor]")
        if name not in commands:
            raise ConfigError(f"{path}: unknown table [{name}]; there are {', '.join(sorted(commands))}")
        for key in table:
            if key not in commands[name]:
                raise ConfigError(
                    f"{path}: unknown setting {key!r} in [{name}]; there are {', '.join(sorted(commands[name]))}"
                )
    return tables


def _check_together(config: ServiceConfig, *names: str) -> None:
    given = [name for name in names if getattr(config, name) is not None]
    missing = [name for name in names if name not in given]
    if given and missing:
        raise ConfigError(f"{missing[0]}: is missing; {', '.join(names)} are given together")


def _check(name: str, kind: Any, limits: Mapping[str, Any], value: Any) -> None:
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ConfigError(f"{name}: must be one of {', '.join(get_args(kind))}, not {value!r}")
    if value is None:
        return
    minimum, maximum = limits["minimum"], limits["maximum"]
    if minimum is not None and not value >= minimum:
        raise ConfigError(f"{name}: must be at least {minimum}, not {value}")
    if maximum is not None and not value <= maximum:
        raise ConfigError(f"{name}: must be at most {maximum}, not {value}")
    if kind is str and not value and name not in ("model_name", "group"):
        raise ConfigError(f"{name}: must not be empty")
