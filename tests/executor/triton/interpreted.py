"""Runs tests in a second pytest that interprets kernels, and passes their reports on.

As a program it is that second pytest: `python -m tests.executor.triton.interpreted FD ARGUMENTS...` takes pytest's
arguments and sends each report to the pipe FD.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

# A test has a time limit of its own; a process that is silent for longer hangs where that can't reach.
_LONGEST_SILENCE = 300.0


class InterpretedTests:
    """The first pytest's plugin: has one folder's tests run by a second one, which is started when the first is due."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: _SecondPytest | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in filter(self._is_ours, items):
            item.add_marker(pytest.mark.timeout(0), append=False)  # the second pytest watches over it

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not self._is_ours(item):
            return None
        if self._process is None:
            items = item.session.items[item.session.items.index(item) :]
            self._process = _SecondPytest(item.config, [item.nodeid for item in items if self._is_ours(item)])
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            for report in self._process.reports_of(item):
                item.ihook.pytest_runtest_logreport(report=report)
        except _Ended as ended:
            self._process = None
            item.ihook.pytest_runtest_logreport(report=_failed(item, str(ended)))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # The item before these has left standing what was set up for their folders too.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def pytest_sessionfinish(self) -> None:
        if self._process:
            self._process.stop()

    def _is_ours(self, item: pytest.Item) -> bool:
        return self._folder in item.path.parents


class _Ended(Exception):
    """The second pytest ended before a test did."""


class _SecondPytest:
    def __init__(self, config: pytest.Config, node_ids: Sequence[str]) -> None:
        self._config = config
        self._early: dict[str, list[pytest.TestReport]] = defaultdict(list)
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (stop closes it)
        receiving, sending = os.pipe()
        self._reports = Connection(receiving, writable=False)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as arguments:
            arguments.write("\n".join([*_options(config), *node_ids]))
        self._arguments = Path(arguments.name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(sending), f"@{arguments.name}"],
            cwd=config.rootpath,
            env=os.environ | {"TRITON_INTERPRET": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[sending],
        )
        os.close(sending)

    def reports_of(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        """Waits for each; the last is that of the teardown.

        Raises:
            _Ended: there will be none.
        """
        while True:
            while not self._early[item.nodeid]:
                report = self._receive()
                self._early[report.nodeid].append(report)
            report = self._early[item.nodeid].pop(0)
            yield report
            if report.when == "teardown":
                return

    def _receive(self) -> pytest.TestReport:
        try:
            if not self._reports.poll(_LONGEST_SILENCE):
                raise _Ended(f"nothing was heard of it for {_LONGEST_SILENCE:.0f} s\n{self.stop()}")
            data = self._reports.recv()
        except EOFError:
            raise _Ended(f"the process that interprets kernels ended before this test did\n{self.stop()}") from None
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        assert isinstance(report, pytest.TestReport)
        return report

    def stop(self) -> str:
        """Ends the process; what it has printed."""
        try:
            self._process.wait(1 if self._process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reports.close()
        self._arguments.unlink()
        with self._output as output:
            output.seek(0)
            return f"{output.read()}\nexit status {self._process.returncode}"


def _options(config: pytest.Config) -> list[str]:
    """What a report's text depends on, and the time limit."""
    option = config.option
    options = [f"--rootdir={config.rootpath}", f"--tb={option.tbstyle}", f"--verbosity={option.verbose}"]
    options += ["--showlocals"] if option.showlocals else []
    options += [f"--timeout={option.timeout}"] if option.timeout is not None else []
    return [*options, "-p", "no:cacheprovider"]


def _failed(item: pytest.Item, why: str) -> pytest.TestReport:
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", why, "call")


class _Reporter:
    """The second pytest's plugin."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._pipe.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config


def _main(arguments: Sequence[str]) -> int:
    pipe = Connection(int(arguments[0]), readable=False)
    return pytest.main(list(arguments[1:]), plugins=[_Reporter(pipe)])


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
