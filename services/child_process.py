"""One supervised child process: its start, its words, its health and its end."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import services
from services.tls_files import TlsFiles

# How long a child whose parent was killed may take to stop by itself.
_ORPHAN_SECONDS = 5.0
_LONGEST_LINE_BYTES = 1 << 20


class DiedEarlyError(Exception):
    """A child died before it ever served."""

    def __init__(self, child: "ChildProcess") -> None:
        super().__init__(f"{child.name}: {child.epitaph}")
        self.child = child


class ChildProcess:
    """One process, which may be started again after it died.

    It lives in a session of its own, so that a terminal's Ctrl-C reaches only the parent. Its standard input is a pipe
    from the parent that ends with the parent (see `stop_with_stdin`), so that it does not outlive one that was killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: str,
        log: Callable[[str], None],
        stands_by: bool = False,
        tls: TlsFiles | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            name: Of the process, as the user knows it; it begins with its service's.
            command: Program and arguments.
            address: Where it will answer health checks, ``host:port``.
            log: Gets each line that it prints.
            stands_by: It is one of several KV managers: where another serves, it is ready too.
            tls: The certificate that it will show.
        """
        self.name = name
        self.address = address
        self._stands_by = stands_by
        self._tls = tls
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._last_line = ""

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; minus the signal's number where one killed it."""
        return self._process.returncode if self._process is not None else None

    @property
    def epitaph(self) -> str:
        """Its last words, or what ended it where it said nothing."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return self._last_line or f"exit code {code}"

    async def start(self) -> None:
        """Starts it, for the first time or again."""
        self._last_line = ""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            # Never written to: that it ends tells the child that its parent is gone.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_of(self.name),
            start_new_session=True,
            limit=_LONGEST_LINE_BYTES,
        )
        self._output = asyncio.create_task(self._pass_on_output(self._process))

    async def ready(self) -> None:
        """Returns when it serves, or stands by.

        Raises:
            DiedEarlyError: It died before.
            ConfigError: Its certificate can't be used.
        """
        # gRPC takes a while to load: here the process has begun to load its own things meanwhile.
        from services.readiness import serving
        from services.rpc import health as names

        name = names.STANDBY if self._stands_by else ""
        answering = asyncio.create_task(serving(self.address, name, self._tls))
        gone = asyncio.create_task(self.exited())
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise DiedEarlyError(self)
            answering.result()
        finally:
            answering.cancel()
            gone.cancel()

    async def exited(self) -> None:
        """Returns when it is dead and all that it said has been passed on."""
        assert self._process is not None
        assert self._output is not None
        await self._process.wait()
        # A process that it left behind may hold its output open.
        await asyncio.wait((self._output,), timeout=1.0)

    async def stop(self, patience: float) -> None:
        """Asks it to stop and kills it where it has not after `patience` seconds."""
        if self.running:
            assert self._process is not None
            self._process.terminate()
            try:
                await asyncio.wait_for(self.exited(), patience)
            except asyncio.TimeoutError:
                self._log(f"{self.name} did not stop in {patience:.0f} s and is killed")
                self.kill()
                await self.exited()
        if self._output is not None:
            self._output.cancel()

    def kill(self) -> None:
        """Ends it at once, with every process that it started."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)

    async def _pass_on_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                # Longer than any line of ours: its rest follows as lines of its own.
                continue
            if not raw:
                return
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._last_line = line
                self._log(f"{self.name}: {line}")


def stop_with_stdin() -> None:
    """Makes this process stop when its standard input ends, which the launcher holds open as long as it lives."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="stop-with-stdin", daemon=True).start()


def environment_of(name: str) -> dict[str, str]:
    """Of a child process of this name, which begins with its service's."""
    package_root = str(Path(services.__file__).parent.parent)
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        # The child runs this very code, whatever lies in the working directory.
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
        "PYTHONSAFEPATH": "1",
    }
    if name.startswith("executor"):
        # OpenMP must not spin: with other processes on the same cores it costs up to 30 times.
        environment |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    return environment
