"""Commands that ask a server about itself: ``models`` and ``health``."""

from typing import Annotated, Any

import typer

from services.cli.connection import connected, open_channel_to
from services.cli.errors import REFUSED, UNUSABLE, CommandError
from services.cli.options import ClientOptions, ServerOptions, expand
from services.rpc import health as names

# Every process answers for "" (itself) and for the services that it has.
_SERVICES = ("", "octavo.v1.GenerationService", "octavo.v1.KVManagerService", "octavo.v1.ExecutorService")

_SERVING, _NOT_SERVING = "SERVING", "NOT_SERVING"

_Timeout = Annotated[float, typer.Option(help="Seconds to wait for an answer.")]


@expand
def models(server: ClientOptions, timeout: _Timeout = 10.0) -> None:
    """List the models that a server has, with their limits."""
    with connected(server) as client:
        found = client.models(timeout)
    width = max((len(model.name) for model in found), default=0)
    for model in found:
        typer.echo(
            f"{model.name:{width}}  context {model.max_model_len} tokens, vocabulary {model.vocab_size},"
            f" {model.num_blocks} blocks of {model.block_size} tokens"
        )


@expand
def health(
    server: ServerOptions,
    service: Annotated[
        str | None, typer.Option(help="Ask only about this one, such as octavo.v1.KVManagerService.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count a process whose state store is away as one that does not serve.")
    ] = False,
    timeout: _Timeout = 5.0,
) -> None:
    """Say whether a process serves; works for all three.

    The exit code is 0 where everything serves, 1 where not, 2 where the process cannot be reached. A process without
    its state store is degraded: it serves, but what it does may not survive it. A KV manager that stands by does not
    serve; of octavo.standby it says that it would.
    """
    serving = True
    with open_channel_to(server) as channel:
        ask = _Asking(channel, server.address, timeout)
        if service is not None:
            serving = ask.serves(service, may_be_unknown=False) is True
        else:
            serving = all([ask.serves(name, may_be_unknown=bool(name)) is not False for name in _SERVICES])
            if not serving and ask.status(names.STANDBY) == _SERVING:
                typer.echo("stands by: another KV manager leads")
            if ask.status(names.STATE) == _NOT_SERVING:
                typer.echo("degraded: the state store is away")
                serving = serving and not strict
    if not serving:
        raise typer.Exit(REFUSED)


class _Asking:
    """Asks one process how it is."""

    def __init__(self, channel: Any, address: str, timeout: float) -> None:
        from grpc_health.v1 import health_pb2_grpc

        self._stub = health_pb2_grpc.HealthStub(channel)
        self._address = address
        self._timeout = timeout

    def serves(self, name: str, *, may_be_unknown: bool) -> bool | None:
        """Says it, too. None where the process does not know the name."""
        status = self.status(name, may_be_unknown=may_be_unknown)
        if status is None:
            return None
        typer.echo(f"{name or self._address}: {status}")
        return status == _SERVING

    def status(self, name: str, *, may_be_unknown: bool = True) -> str | None:
        import grpc
        from grpc_health.v1 import health_pb2

        try:
            answer = self._stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND and may_be_unknown:
                return None
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise CommandError(f"cannot reach {self._address}: {error.details()}", UNUSABLE) from error
            raise CommandError(f"{error.code().name}: {error.details()}", REFUSED) from error
        status: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return status
