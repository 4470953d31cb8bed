"""`python -m benchmarks.soak`: a soak of a real `octavo serve`; exit code 1 when anything was wrong."""

import random
from typing import Annotated

import typer

from benchmarks.soak.report import Report
from benchmarks.soak.run import Options, run
from benchmarks.soak.stack import Place, Settings


def soak(
    requests: Annotated[int, typer.Option(min=1, help="Requests to send.")] = 500,
    clients: Annotated[int, typer.Option(min=1, help="Clients that send at once.")] = 24,
    reruns: Annotated[int, typer.Option(min=0, help="Answered requests to send again, alone.")] = 12,
    seed: Annotated[int | None, typer.Option(help="Decides every request; random when absent.")] = None,
    timeout_minutes: Annotated[float, typer.Option(min=0, help="After which the soak has failed.")] = 30.0,
    searches: Annotated[int, typer.Option(min=0, help="Beam searches to do again with transformers.")] = 10,
    executors: Annotated[int, typer.Option(min=1, help="Executors of the stack, replicas of one model.")] = 2,
    kv_memory: Annotated[
        str, typer.Option(help="Key/value memory of each executor: little, so that it runs out.")
    ] = "44MiB",
    host_memory: Annotated[
        str, typer.Option(help="Host memory of each executor: so little that not everything can be swapped out.")
    ] = "16MiB",
    policy: Annotated[str, typer.Option(help="Scheduling policy of the stack.")] = "priority",
    kill: Annotated[bool, typer.Option(help="Kill an executor in the middle.")] = True,
    address: Annotated[str, typer.Option(help="A running gateway to use instead of a stack of its own.")] = "",
    kvmanager_address: Annotated[str, typer.Option(help="The KV manager of that gateway.")] = "",
) -> None:
    """Serve mixed requests from many clients at once and check every answer, the blocks and the memory."""
    if bool(address) != bool(kvmanager_address):
        raise typer.BadParameter("--address and --kvmanager-address go together")
    options = Options(
        requests=requests,
        clients=clients,
        reruns=reruns,
        seed=random.getrandbits(32) if seed is None else seed,
        timeout=timeout_minutes * 60,
        searches=searches,
        kill=kill,
        stack=Settings(executors, kv_memory, host_memory, policy),
        place=Place(address, kvmanager_address, pids={}) if address else None,
    )
    report = Report()
    fine = run(options, report)
    report.show_failures()
    raise typer.Exit(0 if fine else 1)


if __name__ == "__main__":
    typer.run(soak)
