"""Runs gateway, KV manager and executors as child processes of one: starts, watches, restarts and stops them."""

import asyncio
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from services.child_process import ChildProcess, DiedEarlyError
from services.config import (
    MAX_PORT,
    ConfigError,
    ExecutorConfig,
    GatewayConfig,
    KVManagerConfig,
    ServiceConfig,
    join_address,
)
from services.ports import bind, check_free
from services.progress import Progress, progress_bar, read_progress
from services.tls_files import TlsFiles

# In the order in which they are stopped: first who takes requests, last who computes.
_CONFIGS: Mapping[str, type[ServiceConfig]] = {
    "gateway": GatewayConfig,
    "kvmanager": KVManagerConfig,
    "executor": ExecutorConfig,
}
SERVICES = tuple(_CONFIGS)

# A child that dies more often than this is not started again.
_MAX_DEATHS = 5
_DEATHS_WINDOW_SECONDS = 60.0
_FIRST_BACKOFF_SECONDS = 0.1
# A child that has not left this long after its drain ended is killed.
_STOP_MARGIN_SECONDS = 5.0
# Between choosing a free port and the child's taking it, another process may get it; then all starts again.
_START_ATTEMPTS = 3
_CONFIG_ERROR_EXIT_CODE = 2


class StackError(Exception):
    """The processes could not be started or kept running; the message is one line.

    Attributes:
        exit_code: 2 where they cannot run as they were configured, 1 otherwise.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Addresses:
    """Where each process listens, ``host:port``; `http` is the gateway's too, and empty where it serves none."""

    gateway: str
    kvmanagers: tuple[str, ...]
    executors: tuple[str, ...]
    http: str = ""

    def by_name(self) -> dict[str, str]:
        """By the process's name."""
        kvmanagers = zip(_names("kvmanager", len(self.kvmanagers)), self.kvmanagers, strict=True)
        executors = zip(_names("executor", len(self.executors)), self.executors, strict=True)
        return {"gateway": self.gateway, **dict(kvmanagers), **dict(executors)}


# The command line of one process, given its name and where all listen.
CommandBuilder = Callable[[str, Addresses], Sequence[str]]


def octavo_command(
    settings: Mapping[str, Any], config_file: Path | None = None, tls_dir: Path | None = None
) -> CommandBuilder:
    """Builds the command lines of the real processes.

    Args:
        settings: Values by setting name. Each process gets those that it knows; places are given by the launcher.
        config_file: TOML file that the processes read for the rest.
        tls_dir: Folder with a certificate for each service, as ``octavo certs`` makes it.
    """
    start = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin"]
    if config_file is not None:
        start += ["--config", str(config_file.absolute())]

    def build(name: str, addresses: Addresses) -> list[str]:
        host, _, port = addresses.by_name()[name].rpartition(":")
        values = {key: value for key, value in settings.items() if value is not None}
        values |= {"kvmanager": ",".join(addresses.kvmanagers), "executors": ",".join(addresses.executors)}
        values |= {"host": host.strip("[]"), "port": port, "http": bool(addresses.http)}
        if addresses.http:
            values["http_port"] = addresses.http.rpartition(":")[2]
        service = service_of(name)
        if tls_dir is not None:
            tls = TlsFiles.of_role(tls_dir.absolute(), service)
            values |= {"tls_cert": tls.cert, "tls_key": tls.key, "tls_ca": tls.ca}
        known = {each.name for each in fields(_CONFIGS[service])}
        return [*start, service, *(_flag(key, value) for key, value in values.items() if key in known)]

    return build


# The certificate that the process of this name shows to its callers.
Certificates = Callable[[str], TlsFiles | None]


def octavo_certificates(settings: Mapping[str, Any], tls_dir: Path | None) -> Certificates:
    """Which certificates the real processes show, where they are told the same as `octavo_command`."""

    def find(name: str) -> TlsFiles | None:
        cert, key = settings.get("public_tls_cert"), settings.get("public_tls_key")
        if service_of(name) == "gateway" and cert is not None and key is not None:
            return TlsFiles(Path(cert), Path(key), setting="public_tls")
        return None if tls_dir is None else TlsFiles.of_role(tls_dir, service_of(name))

    return find


def service_of(name: str) -> str:
    """Which of SERVICES the process of this name is."""
    return name.partition("-")[0]


def _names(service: str, count: int) -> list[str]:
    return [service] if count == 1 else [f"{service}-{number}" for number in range(1, count + 1)]


class Stack:
    """A gateway, a KV manager or two, and one or more executors. Belongs to the event loop that starts it."""

    def __init__(
        self,
        command: CommandBuilder,
        *,
        host: str = GatewayConfig.host,
        port: int = GatewayConfig.port,
        http_port: int | None = GatewayConfig.http_port,
        kvmanager_port: int = 0,
        executor_port: int = 0,
        num_executors: int = 1,
        standby: bool = False,
        drain_seconds: float = GatewayConfig.drain_seconds,
        certificates: Certificates = lambda name: None,
        log: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """Starts nothing yet.

        Args:
            command: What to run for each process.
            host: Where the gateway listens; the others stay on loopback.
            port: The gateway's port; 0 takes a free one, here and below.
            http_port: Its other one, for HTTP; None: it serves none.
            kvmanager_port: The KV manager's port; the standby has the next.
            executor_port: The first executor's port; each further one has the next.
            num_executors: How many executors, replicas of one model.
            standby: A second KV manager takes over when the first one fails. They need one state store.
            drain_seconds: What the children were told; one that takes longer to stop is killed.
            certificates: What the children show.
            log: Gets each line that a child prints, and what the launcher itself has to say.

        Raises:
            ConfigError: There are not so many ports from kvmanager_port or executor_port on.
        """
        self._command = command
        self._standby = standby
        self._places = {
            "gateway": (host, port),
            **_places("kvmanager", kvmanager_port, 2 if standby else 1),
            **_places("executor", executor_port, num_executors),
        }
        self._http_place = None if http_port is None else (host, http_port)
        self._drain_seconds = drain_seconds
        self._certificates = certificates
        self._log = log
        self._children: dict[str, ChildProcess] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._on_progress: Callable[[Progress], None] | None = None
        self.addresses = _group(dict.fromkeys(self._places, ""))

    @property
    def http_url(self) -> str:
        """Where HTTP is served; empty where it isn't."""
        scheme = "http" if self._certificates("gateway") is None else "https"
        return f"{scheme}://{self.addresses.http}" if self.addresses.http else ""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children that run, by name: several of a kind are executor-1, executor-2 and so on."""
        return {name: child.pid for name, child in self._children.items() if child.running}

    async def start(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        """Starts all and returns when each one serves.

        Args:
            on_progress: Gets what a child has done of what keeps it from serving, which else goes to the log.

        Raises:
            ConfigError: A port is in use; nothing was started.
            StackError: One cannot start; none is left.
        """
        self._on_progress = on_progress
        try:
            await self._start()
        finally:
            self._on_progress = None

    async def _start(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._choose_addresses()
            try:
                await self._start_once()
                return
            except DiedEarlyError as death:
                await self.stop()
                if attempt == _START_ATTEMPTS or not self._port_was_taken(death.child.name):
                    raise _as_stack_error(death) from None
            except BaseException:
                await self.stop()
                raise

    async def wait(self) -> None:
        """Keeps the children running; returns only by raising.

        Raises:
            StackError: A child dies again and again.
        """
        await _first_failure(self._watchers)

    async def stop(self) -> None:
        """Stops the gateway, then the KV manager, then the executors; each has its drain time to finish what it has."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()
        patience = self._drain_seconds + _STOP_MARGIN_SECONDS
        for service in SERVICES:
            children = [child for name, child in self._children.items() if service_of(name) == service]
            await asyncio.gather(*(child.stop(patience) for child in children))

    def kill(self) -> None:
        """Kills all at once."""
        for child in self._children.values():
            child.kill()

    async def __aenter__(self) -> "Stack":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _choose_addresses(self) -> None:
        # All ports are held until each is chosen, so that no two are the same.
        held: list[socket.socket] = []
        chosen = {}
        try:
            for name, (host, port) in self._places.items():
                held.append(bind(host, port))
                chosen[name] = join_address(host, held[-1].getsockname()[1])
            http = ""
            if self._http_place is not None:
                held.append(bind(*self._http_place))
                http = join_address(self._http_place[0], held[-1].getsockname()[1])
        finally:
            for each in held:
                each.close()
        self.addresses = replace(_group(chosen), http=http)

    def _port_was_taken(self, name: str) -> bool:
        places = [(self._places[name], self.addresses.by_name()[name])]
        if service_of(name) == "gateway" and self._http_place is not None:
            places.append((self._http_place, self.addresses.http))
        return any(_was_taken(host, address) for (host, port), address in places if port == 0)

    async def _start_once(self) -> None:
        self._children = {name: self._make_child(name, address) for name, address in self.addresses.by_name().items()}
        # The executor takes longest: it is first to get a core.
        await asyncio.gather(*(child.start() for child in reversed(self._children.values())))
        await _first_failure([asyncio.create_task(self._until_ready(child)) for child in self._children.values()])
        self._watchers = [asyncio.create_task(self._keep_running(child)) for child in self._children.values()]

    def _make_child(self, name: str, address: str) -> ChildProcess:
        stands_by = self._standby and service_of(name) == "kvmanager"
        command, tls = self._command(name, self.addresses), self._certificates(name)
        return ChildProcess(name, command, address, self._take_line, stands_by, tls)

    def _take_line(self, line: str) -> None:
        if self._on_progress is not None and (progress := read_progress(line)) is not None:
            self._on_progress(progress)
        else:
            self._log(line)

    async def _until_ready(self, child: ChildProcess) -> None:
        await child.ready()
        self._log(f"{child.name} serves on {child.address}, process {child.pid}")

    async def _keep_running(self, child: ChildProcess) -> None:
        deaths: deque[float] = deque()
        while True:
            await child.exited()
            now = time.monotonic()
            deaths.append(now)
            while now - deaths[0] > _DEATHS_WINDOW_SECONDS:
                deaths.popleft()
            if len(deaths) > _MAX_DEATHS:
                raise StackError(
                    f"{child.name} died {len(deaths)} times in {_DEATHS_WINDOW_SECONDS:.0f} s, last: {child.epitaph}", 1
                )
            self._log(f"{child.name} died ({child.epitaph}); it is started again")
            await asyncio.sleep(_FIRST_BACKOFF_SECONDS * 2 ** (len(deaths) - 1))
            await child.start()


def serve_until_stopped(stack: Stack, model_name: str, console: Console) -> None:
    """Runs a stack in the foreground until Ctrl-C or SIGTERM. The addresses to use are the last line printed at start.

    A second Ctrl-C kills.

    Raises:
        ConfigError: A port is in use.
        StackError: A child cannot start, or dies again and again.
    """
    asyncio.run(_serve_until_stopped(stack, model_name, console))


async def _serve_until_stopped(stack: Stack, model_name: str, console: Console) -> None:
    async def serve() -> None:
        with progress_bar("Starting executor, KV manager and gateway", console) as show:
            await stack.start(show)
        print(f"Octavo serves {model_name} on {_where(stack)}", flush=True)
        await stack.wait()

    serving = asyncio.create_task(serve())
    stopping = False

    def interrupted() -> None:
        nonlocal stopping
        if stopping:
            stack.kill()
        else:
            stopping = True
            console.print("Stopping; Ctrl-C once more kills.")
            serving.cancel()

    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, interrupted)
    try:
        await serving
    except asyncio.CancelledError:
        pass
    finally:
        stopping = True
        await stack.stop()


def _where(stack: Stack) -> str:
    return stack.addresses.gateway + (f" and on {stack.http_url}" if stack.http_url else "")


def _places(service: str, first_port: int, count: int) -> dict[str, tuple[str, int]]:
    """Host and port of each process of a service, on loopback; port 0 for a free one."""
    if first_port + count - 1 > MAX_PORT:
        raise ConfigError(f"{service}_port: from {first_port} on there are no {count} ports")
    ports = [first_port + number if first_port else 0 for number in range(count)]
    return {name: (ServiceConfig.host, port) for name, port in zip(_names(service, count), ports, strict=True)}


def _group(addresses: Mapping[str, str]) -> Addresses:
    """Of processes by name, the gateway first."""
    by_service = {
        service: tuple(address for name, address in addresses.items() if service_of(name) == service)
        for service in SERVICES
    }
    return Addresses(by_service["gateway"][0], by_service["kvmanager"], by_service["executor"])


def _was_taken(host: str, address: str) -> bool:
    try:
        check_free(host, int(address.rpartition(":")[2]))
    except ConfigError:
        return True
    return False


def _as_stack_error(death: DiedEarlyError) -> StackError:
    child = death.child
    exit_code = _CONFIG_ERROR_EXIT_CODE if child.exit_code == _CONFIG_ERROR_EXIT_CODE else 1
    return StackError(f"{child.name}: {child.epitaph.removeprefix('octavo: ')}", exit_code)


def _flag(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"


async def _first_failure(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all; the first that fails ends the others and raises."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
