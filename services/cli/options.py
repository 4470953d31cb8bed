# ruff: noqa: RUF009 - setting() returns a dataclass field
"""Command-line options made from data classes, so that a setting is described in one place."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from typing import Any

import typer

from services.config import (
    ConfigError,
    ExecutorConfig,
    GatewayConfig,
    KVManagerConfig,
    ServiceConfig,
    check_address,
    join_address,
    setting,
)

# What the launcher decides for the three processes itself: where each listens and finds the next.
_PLACES = {"host", "port", "metrics_host", "metrics_port", "kvmanager", "executors"}
# Each process has its own: the launcher finds them in one folder.
_CERTIFICATES = {"tls_cert", "tls_key", "tls_ca"}
_COMMON = {each.name for each in fields(ServiceConfig)} - _PLACES


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """How a server is known to be who it should be."""

    tls: bool = setting(
        False, "Over TLS; the server's certificate is signed by an authority that everybody knows.", envvar="OCTAVO_TLS"
    )
    tls_ca: str | None = setting(
        None, "Over TLS; PEM file with the authorities to trust instead.", envvar="OCTAVO_TLS_CA"
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions(TlsOptions):
    """Which process a command asks about itself."""

    address: str = setting(
        join_address(GatewayConfig.host, GatewayConfig.port), "Address of the server.", envvar="OCTAVO_ADDRESS"
    )

    tls_cert: str | None = setting(
        None, "PEM file with a certificate to show, which KV managers and executors ask for.", envvar="OCTAVO_TLS_CERT"
    )
    tls_key: str | None = setting(None, "PEM file with its private key.", envvar="OCTAVO_TLS_KEY")

    def __post_init__(self) -> None:
        check_address("address", self.address)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert, tls_key: are given together")


@dataclass(frozen=True, kw_only=True)
class ClientOptions(TlsOptions):
    """Which gateways a client command talks to, and who is calling."""

    address: str = setting(
        join_address(GatewayConfig.host, GatewayConfig.port),
        "Address of the server; several, with commas between, are tried in turn.",
        envvar="OCTAVO_ADDRESS",
    )
    api_key_file: str | None = setting(
        None, "File that holds the API key to call with; the one in OCTAVO_API_KEY when absent."
    )

    def __post_init__(self) -> None:
        for address in self.addresses():
            check_address("address", address)

    def addresses(self) -> list[str]:
        """``host:port`` of each server."""
        return [address.strip() for address in self.address.split(",")]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen; what is absent takes the server's default."""

    max_tokens: int | None = setting(None, "Most tokens to generate; whatever fits when absent.")
    temperature: float | None = setting(None, "0 always takes the most likely token; 1 when absent.")
    top_p: float | None = setting(None, "Keep the smallest set of tokens whose probabilities add up to this.")
    top_k: int | None = setting(None, "Keep this many of the most likely tokens; 0 keeps all.")
    min_p: float | None = setting(None, "Keep tokens at least this many times as likely as the most likely one.")
    stop: list[str] | None = setting(None, "End before this text; may be given several times.")
    seed: int | None = setting(None, "The same seed gives the same tokens.")
    presence_penalty: float | None = setting(None, "Taken off the logit of each token that the answer holds already.")
    frequency_penalty: float | None = setting(None, "Taken off a token's logit as often as the answer holds it.")
    repetition_penalty: float | None = setting(
        None, "Divides positive logits of tokens in prompt or answer, multiplies negative ones."
    )
    logit_bias: list[str] | None = setting(
        None, "Added to a token's logit, as ID=BIAS such as 42=-100; may be given several times."
    )

    def __post_init__(self) -> None:
        self.values()

    def values(self) -> dict[str, Any]:
        """Sampling parameters by name, None where absent."""
        biases = [_bias(each) for each in self.logit_bias or ()]
        return asdict(self) | {"logit_bias": dict(biases) or None}


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """How a request is scheduled and who may reuse its prompt."""

    priority: int = setting(0, "From -100 to 100; higher goes first where the server schedules by priority.")
    cache_scope: str | None = setting(
        None,
        "Who may reuse the prompt's keys and values: request, app, tenant or shared:NAME; the tenant when absent.",
    )

    def __post_init__(self) -> None:
        check_cache_scope(self.cache_scope)


def check_cache_scope(scope: str | None) -> None:
    """Refuses what is no scope.

    Raises:
        ConfigError: Naming the option.
    """
    if scope not in (None, "request", "app", "tenant") and not str(scope).startswith("shared:"):
        raise ConfigError(f"cache_scope: must be request, app, tenant or shared:NAME, not {scope!r}")


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise ConfigError(f"logit_bias: not ID=BIAS: {text!r}") from error


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Replaces each parameter that is a data class by one option for each of its fields.

    The command's function gets the data class, made from what the options were given.
    """
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(function)
    def command(**values: Any) -> None:
        made = {
            name: group(**{each.name: values.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        function(**made, **values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters += [option(each) for each in _in_help_order(fields(groups[name]))]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return _with_parameters(command, parameters)


def option(setting: "Field[Any]", name: str = "") -> inspect.Parameter:
    """The option that gives one field of a configuration."""
    default = ... if setting.default is MISSING else setting.default
    return inspect.Parameter(
        name or setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=setting.type,
        default=typer.Option(default, help=setting.metadata["help"], envvar=setting.metadata["envvar"]),
    )


def takes_stack_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Gives ``serve`` every setting of the three processes that makes sense there, beside its own parameters.

    They arrive as keyword arguments.
    """
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    parameters += [option(each) for each in stack_settings().values()]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        function(**values)

    return _with_parameters(command, parameters)


def stack_settings() -> "Mapping[str, Field[Any]]":
    """Every setting of the three processes by name: places are the gateway's, inner ones are the launcher's."""
    chosen = {each.name: each for each in fields(ExecutorConfig) if each.name == "model"}
    places = ("model_name", "host", "port", "http_port")
    chosen |= {each.name: each for each in fields(GatewayConfig) if each.name in places}
    for config in (ExecutorConfig, KVManagerConfig, GatewayConfig):
        for each in _in_help_order(fields(config)):
            if each.name not in _PLACES | _CERTIFICATES:
                chosen.setdefault(each.name, each)
    return {each.name: each for each in _in_help_order(chosen.values())}


def _in_help_order(settings: "Iterable[Field[Any]]") -> "list[Field[Any]]":
    """The model first, then the command's own settings, what every process has last."""
    return sorted(settings, key=lambda each: (each.name in _COMMON) - (each.default is MISSING))


def _with_parameters(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
