"""The command line as a person meets it: real processes, their words and their exit codes."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.v1 import common_pb2
from services.cli.durations import format_duration, parse_duration
from services.config import ConfigError, ExecutorConfig, KVManagerConfig
from tests.services.scripted_gateways import LENGTHS, Fault, World, gateways, text_until
from tests.services.scripted_server import SERVICE, ScriptedGeneration, running

OCTAVO = [sys.executable, "-m", "services.cli.app"]
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}


@pytest.fixture
def servicer() -> ScriptedGeneration:
    return ScriptedGeneration()


@pytest.fixture
def address(servicer: ScriptedGeneration) -> Iterator[str]:
    with running(servicer) as address:
        yield address


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def octavo(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTAVO, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT | environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def complaint(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """The one line on stderr of a command that failed as it should."""
    assert done.returncode == exit_code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("octavo: ")
    return line


def test_help_shows_every_command() -> None:
    commands = ["serve", "gateway", "kvmanager", "executor", "chat", "generate", "models", "health", "fetch", "demo"]
    commands += ["pin", "unpin", "pins", "bench", "explain", "top", "tenant"]
    shown = octavo("--help").stdout
    assert all(f"\n  {command} " in shown for command in commands)
    assert octavo().stdout == shown


def test_help_shows_defaults_and_environment_variables() -> None:
    shown = " ".join(octavo("executor", "--help").stdout.split())
    assert f"env var: OCTAVO_EXECUTOR_KV_MEMORY; default: {ExecutorConfig.kv_memory}" in shown
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in shown


def test_serve_takes_the_settings_of_all_three() -> None:
    shown = " ".join(octavo("serve", "--help").stdout.split())
    for flag in ("--kv-memory", "--dtype", "--max-batched-tokens", "--state", "--shared-namespaces", "--executor-port"):
        assert f"{flag} <" in shown
    assert f"env var: OCTAVO_SERVE_MAX_SEQUENCES; default: {KVManagerConfig.max_sequences}" in shown


def test_version() -> None:
    assert octavo("--version").stdout.startswith("octavo 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["serve", "--modle", "x"], "No such option: --modle"),
        (["serve"], "Missing option '--model'"),
        (["serve", "--model", "/no/such/model"], "no such file or folder, nor a known name (smollm2): /no/such/model"),
        (["gateway", "--model", "/no/such/model"], "model: no such file or folder"),
        (["executor", "--model", "/no/such/model"], "model: no such file or folder"),
        (["executor", "--model", "x", "--device", "abacus"], "'abacus' is not one of 'auto', 'cpu', 'cuda'"),
        (["executor", "--model", "x", "--kv-memory", "lots"], "kv_memory: neither an amount"),
        (["kvmanager", "--port", "many"], "Invalid value for '--port'"),
        (["kvmanager", "--port", "70000"], "port: must be at most 65535"),
        (["serve", "--model", "x", "--standby"], "standby: two KV managers share what they know in a Redis"),
        (["kvmanager", "--executors", "here"], "executors: not a host:port address: 'here'"),
        (["models", "--address", "here"], "address: not a host:port address: 'here'"),
        (["--config", "/no/such/file", "kvmanager"], "/no/such/file: No such file or directory"),
        (["gateway", "--model", "x", "--shared-namespaces", "docs"], "shared_namespaces: 'docs' is not one NAME="),
        (["generate"], "Missing option '--prompt'"),
        (["generate", "--prompt", "x", "--cache-scope", "all"], "cache_scope: must be request, app, tenant or shared:"),
        (["generate", "--prompt", "x", "--logit-bias", "5"], "logit_bias: not ID=BIAS: '5'"),
        (["generate", "--prompt", "x", "--regex", "a", "--choice", "b"], "regex, choice: an answer can have one guide"),
        (["generate", "--prompt", "x", "--grammar", "/no/such"], "grammar: cannot read /no/such: No such file"),
        (
            ["generate", "--prompt", "x", "--early-stopping", "soon"],
            "'soon' is not one of 'heuristic', 'first', 'never'",
        ),
        (["pin", "x"], "Missing option '--ttl'"),
        (["pin", "--ttl", "1h"], "Missing argument 'prompt'"),
        (["pin", "x", "--ttl", "soon"], "ttl: not a time such as 90s, 1h30m or 2d: 'soon'"),
        (["pin", "x", "--ttl", "1h", "--cache-scope", "all"], "cache_scope: must be"),
        (["unpin"], "Missing argument 'ID'"),
        (["fetch", "gpt-7"], "'gpt-7' cannot be fetched; known names: smollm2"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    assert message in complaint(octavo(*arguments), 2)


@pytest.mark.parametrize("text", ["[kvmanager]\nbudget = 3\n", "[manager]\n", "kvmanager = \n"])
def test_a_bad_configuration_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text(text)
    assert str(file) in complaint(octavo("--config", str(file), "kvmanager"), 2)


@pytest.mark.parametrize("command", ["serve", "gateway", "kvmanager", "executor"])
def test_a_port_in_use(tmp_path: Path, command: str) -> None:
    model = [] if command == "kvmanager" else ["--model", str(tmp_path)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = octavo(command, *model, "--port", str(port))
    assert complaint(done, 2) == f"octavo: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["models"], ["health"], ["chat"], ["pins"]])
def test_an_unreachable_address(nowhere: str, command: list[str]) -> None:
    done = octavo(*command, "--address", nowhere, stdin="hello\n")
    assert f"cannot reach {nowhere}" in complaint(done, 2)


def test_the_address_may_come_from_the_environment_or_a_file(nowhere: str, address: str, tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text(f'[models]\naddress = "{nowhere}"\n')
    assert nowhere in complaint(octavo("--config", str(file), "models"), 2)
    assert octavo("--config", str(file), "models", OCTAVO_ADDRESS=address).returncode == 0
    assert octavo("models", "--address", address, OCTAVO_ADDRESS=nowhere).returncode == 0


def test_the_api_key_comes_from_the_environment_or_a_file(
    address: str, servicer: ScriptedGeneration, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    ask = ["pins", "--address", address]
    for more, environment, sent in [
        ([], {"OCTAVO_API_KEY": "from-env"}, "Bearer from-env"),
        (["--api-key-file", str(file)], {"OCTAVO_API_KEY": "from-env"}, "Bearer from-a-file"),
    ]:
        assert octavo(*ask, *more, **environment).returncode == 0
        assert servicer.metadata.get("authorization") == sent
    file.write_text("no key")
    words = complaint(octavo(*ask, "--api-key-file", str(file)), 2)
    assert "api_key" in words
    assert "no key" not in words


def test_a_server_that_is_away_and_one_that_breaks_off(nowhere: str) -> None:
    """The next one goes on."""
    with gateways(2) as servers:
        world = World(faults=[None, Fault(3)])  # Resume is asked first, and knows nothing
        for server in servers.values():
            server.world = world
        done = octavo("generate", "--prompt", "x", "--address", ",".join([nowhere, *servers]))
        assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, text_until(0, LENGTHS[0]), "")
        assert world.served_by[-1] == 1


def test_models(address: str) -> None:
    assert octavo("models", "--address", address).stdout == (
        "parrot  context 64 tokens, vocabulary 1000, 8 blocks of 16 tokens\n"
    )


def test_health(address: str) -> None:
    done = octavo("health", "--address", address)
    assert (done.returncode, done.stdout) == (0, f"{address}: SERVING\n{SERVICE}: SERVING\n")
    assert octavo("health", "--address", address, "--service", SERVICE).returncode == 0
    unknown = octavo("health", "--address", address, "--service", "octavo.v1.Nothing")
    assert complaint(unknown, 1).startswith("octavo: NOT_FOUND")


def test_health_of_a_server_that_drains(servicer: ScriptedGeneration) -> None:
    with running(servicer, status=2) as address:
        done = octavo("health", "--address", address)
    assert done.returncode == 1
    assert f"{SERVICE}: NOT_SERVING" in done.stdout


def test_health_without_the_state_store_is_degraded(servicer: ScriptedGeneration) -> None:
    with running(servicer, state=2) as address:
        done = octavo("health", "--address", address)
        strict = octavo("health", "--address", address, "--strict")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "degraded: the state store is away")
    assert strict.returncode == 1


def test_health_of_a_standby(servicer: ScriptedGeneration) -> None:
    with running(servicer, status=2, state=1, standby=1) as address:
        done = octavo("health", "--address", address)
        ready = octavo("health", "--address", address, "--service", "octavo.standby")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "stands by: another KV manager leads")
    assert ready.returncode == 0


def test_health_is_light(address: str) -> None:
    """A container engine runs it every few seconds: nothing of the model or the telemetry is loaded."""
    done = octavo("health", "--address", address, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert "grpc" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "opentelemetry", "tokenizers", "rich", "asyncio.unix_events"}


def test_generate_streams_text(address: str) -> None:
    done = octavo("generate", "--prompt", "to be or not", "--address", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "to be or not \n", "")


def test_generate_sends_what_was_asked_for(address: str, servicer: ScriptedGeneration) -> None:
    flags = f"--max-tokens 7 --temperature 0 --top-p 0.5 --top-k 3 --min-p 0.25 --stop a --stop b --seed {2**64 - 1}"
    done = octavo("generate", "--prompt", "x", "--address", address, "--timeout", "9", "--model", "m", *flags.split())
    assert done.returncode == 0, done.stderr
    (request,) = servicer.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.0, 0.5, 3)
    assert (sampling.min_p, list(sampling.stop), sampling.seed) == (0.25, ["a", "b"], 2**64 - 1)
    assert (request.model, request.timeout.ToSeconds()) == ("m", 9)
    assert not sampling.HasField("n")
    assert not sampling.HasField("logprobs")


def test_generate_sends_how_answers_are_found(address: str, servicer: ScriptedGeneration) -> None:
    flags = "--n 2 --best-of 3 --beam-width 4 --length-penalty -0.5 --early-stopping never --priority -7"
    flags += " --cache-scope shared:docs --presence-penalty 0.5 --frequency-penalty -0.5 --repetition-penalty 1.25"
    flags += " --logit-bias 5=-100 --logit-bias 6=2.5"
    done = octavo("generate", "--prompt", "x", "--address", address, *flags.split())
    assert done.returncode == 0, done.stderr
    (request,) = servicer.requests
    sampling = request.sampling
    assert (sampling.n, sampling.best_of, sampling.beam_width, sampling.length_penalty) == (2, 3, 4, -0.5)
    assert sampling.early_stopping == common_pb2.EARLY_STOPPING_NEVER
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.25)
    assert dict(sampling.logit_bias) == {5: -100.0, 6: 2.5}
    assert (request.priority, request.cache_scope.shared) == (-7, "docs")


def test_generate_sends_what_the_answer_must_look_like(
    address: str, servicer: ScriptedGeneration, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "object"}')
    grammar.write_text('start: "ä"', "utf-8")
    for flags in (
        ["--json-schema", str(schema)],
        ["--json-schema", ' {"type": "array"}'],
        ["--grammar", str(grammar)],
        ["--choice", "yes", "--choice", "no"],
    ):
        done = octavo("generate", "--prompt", "x", "--address", address, *flags)
        assert done.returncode == 0, done.stderr
    assert [request.sampling.guide for request in servicer.requests] == [
        common_pb2.Guide(json_schema='{"type": "object"}'),
        common_pb2.Guide(json_schema=' {"type": "array"}'),
        common_pb2.Guide(grammar='start: "ä"'),
        common_pb2.Guide(choice=common_pb2.ChoiceGuide(choices=["yes", "no"])),
    ]


def test_generate_beams_with_their_scores(address: str) -> None:
    done = octavo("generate", "--prompt", "hey you", "-n", "2", "--beam-width", "4", "--address", address)
    assert done.stdout.splitlines() == ["[0 -0.2500] hey you ", "[1 -1.2500] hey you "]


def test_generate_says_what_it_took(address: str) -> None:
    done = octavo("generate", "--prompt", "hey you", "--usage", "--progress", "--address", address)
    assert done.stdout == "hey you \n"
    assert done.stderr.splitlines() == [
        "prompt: 1 of 2 tokens",
        "2 prompt tokens, 1 cached (the rest is cached under another scope); 2 completion tokens",
    ]
    done = octavo("generate", "--prompt", "hey", "--usage", "--progress", "--json", "--address", address)
    assert json.loads(done.stdout.splitlines()[0])["progress"] == {"computed_tokens": 1, "prompt_tokens": 1}
    assert done.stderr.startswith("1 prompt token, 1 cached")


def test_pins(address: str, servicer: ScriptedGeneration) -> None:
    flags = ["--ttl", "1h30m", "--cache-scope", "app", "--model", "m", "--timeout", "9"]
    done = octavo("pin", "one two three", *flags, "--address", address)
    line = "pin0  3 tokens in 1 block, 1h30m left\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
    (request,) = servicer.pin_requests
    assert (request.prompt.text, request.ttl.ToSeconds(), request.model) == ("one two three", 5400, "m")
    assert (request.cache_scope.WhichOneof("scope"), request.timeout.ToSeconds()) == ("app", 9)
    assert octavo("pins", "--address", address).stdout == line
    servicer.pins["pin0"].resident = False
    assert octavo("pins", "--address", address).stdout == line.replace("left", "left, to be computed again")
    assert octavo("unpin", "pin0", "--address", address).returncode == 0
    assert octavo("pins", "--address", address).stdout == ""
    assert complaint(octavo("unpin", "pin0", "--address", address), 1) == (
        "octavo: NOT_FOUND: pin_id: there is no such pin"
    )


def test_a_pin_refused(address: str) -> None:
    done = octavo("pin", "refuse", "--ttl", "60", "--address", address)
    assert complaint(done, 1) == "octavo: INVALID_ARGUMENT: ttl: too long"


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("90", 90, "1m30s"),
        ("90s", 90, "1m30s"),
        ("1.5h", 5400, "1h30m"),
        ("1h30m", 5400, "1h30m"),
        ("2d", 172_800, "2d"),
        ("1d2h3m4s", 93_784, "1d2h"),
        ("0.4s", 0.4, "0s"),
    ],
)
def test_times(text: str, seconds: float, shown: str) -> None:
    assert parse_duration("ttl", text) == seconds
    assert format_duration(seconds) == shown


@pytest.mark.parametrize("text", ["", "h", "1w", "-1h", "1h 30m", "h1", "1.h", "1e3s", "1h\n"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="ttl: not a time"):
        parse_duration("ttl", text)


def test_generate_several_answers(address: str) -> None:
    done = octavo("generate", "--prompt", "hey you", "--n", "3", "--address", address)
    assert done.stdout.splitlines() == ["[0] hey you ", "[1] hey you ", "[2] hey you "]


def test_generate_log_probabilities(address: str) -> None:
    done = octavo("generate", "--prompt", "hey", "--logprobs", "1", "--address", address)
    assert done.stdout.splitlines() == ["hey ", "token     100   -0.5000  100:-0.5000"]


def test_generate_json(address: str) -> None:
    done = octavo("generate", "--prompt", "hé you", "--json", "--address", address)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["text"] for line in lines] == ["hé ", "you "]
    assert lines[-1]["usage"]["completion_tokens"] == 2


def test_generate_refused(address: str) -> None:
    done = octavo("generate", "--prompt", "refuse", "--address", address)
    assert complaint(done, 1) == "octavo: INVALID_ARGUMENT: sampling.temperature: must not be negative"


def test_generate_from_a_server_that_stops(address: str) -> None:
    done = octavo("generate", "--prompt", "draining", "--address", address)
    assert complaint(done, 1) == "octavo: UNAVAILABLE: the server is stopping"


def test_ctrl_c_in_generate_is_quiet(address: str, servicer: ScriptedGeneration) -> None:
    process = subprocess.Popen(
        [*OCTAVO, "generate", "--prompt", "forever", "--address", address],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(2) == "on"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (130, "", "")
    assert servicer.client_left.wait(10)


def test_chat_reads_lines_and_keeps_the_conversation(address: str, servicer: ScriptedGeneration) -> None:
    done = octavo("chat", "--system", "be kind", "--address", address, stdin="hello you\n\nand again\n/quit\nnever\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello you \nand again \n", "")
    assert len(servicer.requests) == 2
    assert [(message.role, message.content) for message in servicer.requests[-1].prompt.chat.messages] == [
        ("system", "be kind"),
        ("user", "hello you"),
        ("assistant", "hello you "),
        ("user", "and again"),
    ]


def test_chat_sends_what_was_asked_for(address: str, servicer: ScriptedGeneration) -> None:
    flags = "--priority 5 --cache-scope request --presence-penalty 1 --logit-bias 5=-1 --model m"
    done = octavo("chat", *flags.split(), "--address", address, stdin="hello\n")
    assert done.returncode == 0, done.stderr
    (request,) = servicer.requests
    assert (request.priority, request.cache_scope.WhichOneof("scope"), request.model) == (5, "request", "m")
    assert (request.sampling.presence_penalty, dict(request.sampling.logit_bias)) == (1.0, {5: -1.0})


def test_chat_refused(address: str) -> None:
    done = octavo("chat", "--address", address, stdin="refuse\nhello\n")
    assert "sampling.temperature: must not be negative" in complaint(done, 1)


def test_chat_in_a_terminal(address: str) -> None:
    """A greeting, a refusal that does not end the talk, an answer, and Ctrl-C."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*OCTAVO, "chat", "--address", address],
        cwd=ROOT,
        env=ENVIRONMENT | {"TERM": "dumb"},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    seen = ""

    def see(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 30
        while text not in seen:
            assert time.monotonic() < deadline, seen
            seen += os.read(parent, 4096).decode()
        seen = seen.partition(text)[2]

    try:
        see(f"Talking with parrot on {address}")
        see("> ")
        os.write(parent, b"refuse\n")
        see("octavo: INVALID_ARGUMENT: sampling.temperature: must not be negative")
        see("> ")
        os.write(parent, b"good evening\n")
        see("good evening")
        see("good evening ")
        see("> ")
        os.write(parent, b"forever\n")
        see("on")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, os.read(parent, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(parent)
