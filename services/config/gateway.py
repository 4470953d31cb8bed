"""What the gateway can be told."""

from dataclasses import dataclass
from pathlib import Path

from gateway.scope import NAME_RULE, is_name
from services.config.addresses import check_address, model_name_of
from services.config.files import read_operator_key
from services.config.service import ServiceConfig
from services.config.settings import MAX_PORT, ConfigError, check_together, setting, tenants_file
from services.config.state import StateConfig
from services.tls_files import TlsFiles

MIN_MESSAGE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(StateConfig, ServiceConfig):
    """The public server: text in, text out."""

    port: int = setting(50051, "Port to listen on.", minimum=0, maximum=MAX_PORT)
    http_port: int = setting(8000, "Port to listen on for HTTP.", minimum=0, maximum=MAX_PORT)
    http: bool = setting(True, "Serve HTTP, too: OpenAI's API, metrics and the console.")
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
    tenants_file: str | None = tenants_file()
    operator_key_file: str | None = setting(
        None,
        "File with the key of whoever operates the gateway, who may see what all tenants have and do;"
        " $OCTAVO_OPERATOR_KEY when absent. Without one, only gateways without tenants show all.",
    )
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
        check_together(self, "public_tls_cert", "public_tls_key")
        self.kvmanager_groups()
        self.check_state()
        self.namespace_members()
        self.operator_key()
        object.__setattr__(self, "model_name", self.model_name or model_name_of(self.model))

    @property
    def server_tls(self) -> TlsFiles | None:
        if self.public_tls_cert is None or self.public_tls_key is None:
            return self.tls
        return TlsFiles(Path(self.public_tls_cert), Path(self.public_tls_key), setting="public_tls")

    def operator_key(self) -> str | None:
        """The operator's key, read anew, so that it is no part of this object and of what shows it.

        Raises:
            ConfigError: The file can't be read, or what is in it is no key.
        """
        return read_operator_key(self.operator_key_file)

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
