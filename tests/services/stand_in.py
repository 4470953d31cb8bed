"""Stand-ins for the three processes: real ones, with real health servers, that do what a test tells them to.

python stand_in.py parent JOURNAL [BEHAVIOUR]           runs a stack of stand-ins as `octavo serve` runs the real ones
python stand_in.py child NAME ADDRESS JOURNAL BEHAVIOUR  is one of them

Every child writes down in the journal when it serves and when it is asked to stop. A behaviour is "name:what":
  fails   says why on stderr and ends with exit code 2
  crashes ends with exit code 1 before it serves
  loads   logs progress before it serves
  stays   does not stop when it is asked to
"""

import json
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from rich.console import Console

from services.child_process import stop_with_stdin
from services.launcher import Addresses, CommandBuilder, Stack, StackError, serve_until_stopped
from services.rpc import health as names


def command(journal: Path, behaviour: str = "") -> CommandBuilder:
    """Command lines of stand-ins that share a journal."""

    def build(name: str, addresses: Addresses) -> Sequence[str]:
        what = behaviour.removeprefix(f"{name}:") if behaviour.startswith(f"{name}:") else ""
        return [sys.executable, __file__, "child", name, addresses.by_name()[name], str(journal), what]

    return build


def child(name: str, address: str, journal: str, what: str) -> None:
    """Serves health until it is asked to stop."""
    stop_with_stdin()
    if what == "fails":
        print("first line", file=sys.stderr)
        sys.exit(_say("octavo: the model is missing", 2))
    if what == "crashes":
        sys.exit(_say("segment violated", 1))
    if what == "loads":
        print(json.dumps({"event": "progress", "task": "Converting weights", "done": 7, "total": 10}), flush=True)
        print("ready", flush=True)
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    checks = health.HealthServicer()
    for each in ("", names.STANDBY):
        checks.set(each, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_insecure_port(address)
    server.start()
    _note(journal, f"{name} serves")
    asked.wait()
    _note(journal, f"{name} stops")
    if what == "stays":
        threading.Event().wait()
    server.stop(0).wait()


def parent(journal: str, behaviour: str = "") -> int:
    """What `octavo serve` does, with stand-ins."""
    console = Console(stderr=True, soft_wrap=True)
    stack = Stack(command(Path(journal), behaviour), port=0, http_port=0, drain_seconds=60, log=console.print)
    try:
        serve_until_stopped(stack, "nothing", console)
    except StackError as error:
        return _say(f"octavo: {error}", error.exit_code)
    return 0


def _note(journal: str, event: str) -> None:
    with open(journal, "a") as file:
        file.write(event + "\n")


def _say(message: str, exit_code: int) -> int:
    print(message, file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    sys.exit({"parent": parent, "child": child}[role](*arguments))
