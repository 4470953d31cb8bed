"""Commands that ask a server about itself: ``models`` and ``health``."""

from typing import Annotated

import typer

from services.cli.connection import connected
from services.cli.errors import REFUSED, UNUSABLE, CommandError
from services.cli.options import ClientOptions, ServerOptions, expand

# Every process answers for "" (itself) and for the services that it has.
_SERVICES = ("", "octavo.v1.GenerationService", "octavo.v1.KVManagerService", "octavo.v1.ExecutorService")

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
    timeout: _Timeout = 5.0,
) -> None:
    """Say whether a process serves; works for all three.

    The exit code is 0 where everything serves, 1 where not, 2 where the process cannot be reached.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    serving = True
    # Asked beside the process, mostly: never through a proxy that the environment names.
    with grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in _SERVICES if service is None else (service,):
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND and service is None and name:
                    continue
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise CommandError(f"cannot reach {server.address}: {error.details()}", UNUSABLE) from error
                raise CommandError(f"{error.code().name}: {error.details()}", REFUSED) from error
            status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            typer.echo(f"{name or server.address}: {status}")
            serving = serving and answer.status == health_pb2.HealthCheckResponse.SERVING
    if not serving:
        raise typer.Exit(REFUSED)
