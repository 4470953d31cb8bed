"""Settings: limits, the TOML file, and which source wins, as seen through the real command line."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from executor.memory.memory_budget import parse_budget
from kvmanager.accounts import Quota
from services.config import ConfigError, ExecutorConfig, GatewayConfig, KVManagerConfig, read_toml

COMMANDS = {"executor": {"kv_memory", "threads"}, "gateway": {"port"}}

# The real command line with a server that only says what it was told.
SHOW_CONFIG = """
import dataclasses, json, sys, types
server = types.ModuleType("services.executor.server")
server.run = lambda config: print(json.dumps(dataclasses.asdict(config)))
sys.modules["services.executor"] = types.ModuleType("services.executor")
sys.modules["services.executor.server"] = server
from services.cli.app import main
main()
"""

# `octavo serve` up to the point where it would start the children: their command lines.
SHOW_CHILDREN = """
import json
from services import launcher
addresses = launcher.Addresses("127.0.0.1:1", ("127.0.0.1:2",), ("127.0.0.1:3",))
launcher.serve_until_stopped = lambda stack, name, console: print(
    json.dumps({name: stack._command(name, addresses) for name in addresses.by_name()})
)
from services.cli.app import main
main()
"""


def executor_config(tmp_path: Path, *arguments: str, **environment: str) -> dict[str, object]:
    """What `octavo [--config ...] executor ...` starts the executor with."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_CONFIG, *arguments, "--model", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    config: dict[str, object] = json.loads(done.stdout)
    return config


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('[executor]\nkv_memory = "1GiB"\nthreads = 3\nblock_size = 8\n')
    config = executor_config(
        tmp_path,
        "--config",
        str(file),
        "executor",
        "--kv-memory",
        "3GiB",
        OCTAVO_EXECUTOR_KV_MEMORY="2GiB",
        OCTAVO_EXECUTOR_THREADS="2",
    )
    assert config["kv_memory"] == "3GiB"
    assert config["threads"] == 2
    assert config["block_size"] == 8
    assert config["dtype"] == ExecutorConfig.dtype
    assert config["model_name"] == tmp_path.name


def test_a_variable_that_is_empty_says_nothing(tmp_path: Path) -> None:
    config = executor_config(
        tmp_path,
        "executor",
        OCTAVO_EXECUTOR_GPU_MEMORY_UTILIZATION="",
        OCTAVO_EXECUTOR_MAX_BATCHED_TOKENS="",
        OCTAVO_EXECUTOR_MAX_SEQUENCES="",
    )
    assert config["gpu_memory_utilization"] is None
    assert config["max_batched_tokens"] == ExecutorConfig.max_batched_tokens
    assert config["max_sequences"] == ExecutorConfig.max_sequences


def test_the_file_may_come_from_the_environment_and_traces_from_the_standard_one(tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text("[executor]\nthreads = 3\n")
    config = executor_config(
        tmp_path, "executor", OCTAVO_CONFIG=str(file), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4317"
    )
    assert config["threads"] == 3
    assert config["otlp_endpoint"] == "http://127.0.0.1:4317"


def test_serve_hands_down_what_it_was_asked_for_and_no_defaults(tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text("[serve]\nthreads = 3\n[executor]\nblock_size = 8\n")
    arguments = [
        "--config",
        str(file),
        "serve",
        "--model",
        str(tmp_path),
        "--port",
        "0",
        "--http-port",
        "0",
        "--kv-memory",
        "2GiB",
    ]
    done = subprocess.run(
        [sys.executable, "-c", SHOW_CHILDREN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OCTAVO_SERVE_MAX_SEQUENCES": "9"},
    )
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)
    # The child reads its own table and environment, so a default must not come as a flag, which would beat them.
    assert {"--threads=3", "--kv-memory=2GiB", f"--model={tmp_path}", "--config", str(file)} <= set(
        commands["executor"]
    )
    assert not any(argument.startswith(("--block-size", "--dtype")) for argument in commands["executor"])
    assert "--max-sequences=9" in commands["kvmanager"]
    assert not any(argument.startswith("--max-batched-tokens") for argument in commands["kvmanager"])
    assert f"--model-name={tmp_path.name}" in commands["gateway"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--device=cuda"],
        ["--device=cpu"],
        ["--device=auto", "--attention-backend=triton", "--kv-dtype=fp8", "--dtype=float16"],
        ["--device=cuda", "--gpu-memory-utilization=0.8"],
    ],
)
def test_serve_says_what_the_executor_computes_on(tmp_path: Path, flags: list[str]) -> None:
    arguments = ["serve", "--model", str(tmp_path), "--port", "0", "--http-port=0", *flags]
    done = subprocess.run(
        [sys.executable, "-c", SHOW_CHILDREN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)
    assert set(flags) <= set(commands["executor"])
    assert not set(flags) & {*commands["gateway"], *commands["kvmanager"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[executor\n", "not valid TOML"),
        ("port = 3\n", r"'port' stands outside a table"),
        ("[scheduler]\n", r"unknown table \[scheduler\]; there are executor, gateway"),
        ("[executor]\nkv_size = 3\n", r"unknown setting 'kv_size' in \[executor\]; there are kv_memory, threads"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_toml(file, COMMANDS)


def test_serve_gives_the_sizes_of_a_step_to_who_builds_it_and_to_who_computes_it(tmp_path: Path) -> None:
    flags = {"--max-batched-tokens=300", "--max-sequences=30"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SHOW_CHILDREN,
            "serve",
            "--model",
            str(tmp_path),
            "--port",
            "0",
            "--http-port",
            "0",
            *flags,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)
    assert flags <= set(commands["executor"])
    assert flags <= set(commands["kvmanager"])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(tmp_path / "octavo.toml", COMMANDS)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("4096", 4096),
        ("40%", 400),
        ("100%", 1000),
    ],
)
def test_kv_memory(text: str, size: int) -> None:
    assert ExecutorConfig(model="m", kv_memory=text).kv_memory_bytes(1000) == size


def test_the_executor_reads_a_bare_number_as_the_configuration_does() -> None:
    assert parse_budget(ExecutorConfig(model="m", kv_memory="4096").kv_memory, lambda: 0) == 4096


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1GiB", "12 apples", "half"])
def test_bad_kv_memory(text: str) -> None:
    with pytest.raises(ConfigError, match="kv_memory"):
        ExecutorConfig(model="m", kv_memory=text)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("drain_seconds", -1.0),
        ("executors", "localhost"),
        ("executors", "localhost:0"),
        ("executors", "localhost:1,"),
        ("policy", "lifo"),
        ("preemption", "kill"),
        ("max_batched_tokens", 0),
        ("state", "postgres://x"),
        ("log_level", "loud"),
    ],
)
def test_a_value_out_of_its_limits_names_the_setting(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting):
        KVManagerConfig(**{setting: value})


def test_a_group_has_the_same_name_everywhere_but_on_loopback() -> None:
    assert KVManagerConfig(executors="b:2,a:1").group == KVManagerConfig(executors="a:1, b:2").group == "a:1,b:2"
    assert KVManagerConfig(executors="a:1", group="blue").group == "blue"
    for here in ("127.0.0.1:5", "localhost:5", "[::1]:5"):
        assert KVManagerConfig(executors=here).group == f"{socket.gethostname()}/{here}"


def test_several_executors() -> None:
    config = KVManagerConfig(executors="a:1, [::1]:2,c.d:3")
    assert config.executor_addresses() == ["a:1", "[::1]:2", "c.d:3"]


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
        (None, {}),
        ("", {}),
        ("acme:max=5", {"acme": Quota(max_blocks=5)}),
        (
            "acme:reserved=100,max=500,weight=2; beta:weight=0.5 ;shared:docs:reserved=3",
            {"acme": Quota(100, 500, 2), "beta": Quota(weight=0.5), "shared:docs": Quota(3)},
        ),
    ],
)
def test_quotas_of_tenants(text: str | None, quotas: dict[str, Quota]) -> None:
    assert KVManagerConfig(tenants=text).quotas() == quotas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acme", "'acme' is not TENANT:SETTING=NUMBER"),
        ("ac me:max=5", "'ac me:max=5' is not TENANT:SETTING=NUMBER"),
        ("acme:", "acme: '' is not one of reserved, max and weight"),
        ("acme:limit=5", "acme: 'limit=5' is not one of reserved, max and weight"),
        ("acme:max=5,max=6", "acme: 'max=6' is not one of reserved, max and weight, each once"),
        ("acme:max=5.5", "acme: max must be a whole number of blocks, not '5.5'"),
        ("acme:max", "acme: max must be a whole number of blocks, not ''"),
        ("acme:weight=much", "acme: weight must be a number, not 'much'"),
        ("acme:weight=inf", "acme: weight must be a number above 0"),
        ("acme:weight=0", "acme: weight is 0.0; it must be above 0"),
        ("acme:reserved=-1", "acme: reserved_blocks and max_blocks must not be negative"),
        ("acme:reserved=9,max=5", "acme: reserved_blocks is 9, above max_blocks, 5"),
        ("acme:max=5;acme:max=5", "acme is there twice"),
    ],
)
def test_a_quota_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"tenants: {re.escape(message)}"):
        KVManagerConfig(tenants=text)


@pytest.mark.parametrize(
    ("path", "name"), [("/models/smol-1.5", "smol-1.5"), ("x/Smol.Q4_1.gguf", "Smol.Q4_1"), ("smollm2", "smollm2")]
)
def test_a_model_is_called_by_its_folder_or_file(path: str, name: str) -> None:
    assert GatewayConfig(model=path).model_name == name


def test_ipv6_address() -> None:
    assert KVManagerConfig(host="::1", port=1).address == "[::1]:1"


@pytest.mark.parametrize(
    "url",
    ["redis://localhost", "redis://user@10.0.0.1:6379/2", "rediss://[::1]:1/0?ssl_ca_certs=/ca", "unix:///s?db=1"],
)
def test_where_state_lives(url: str) -> None:
    assert KVManagerConfig(state=url).state == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:s3cret@localhost", "state: the URL must not hold a password"),
        ("redis://user:s3cret@localhost/0", "state: the URL must not hold a password"),
        ("unix:///s?password=s3cret", "state: the URL must not hold a password"),
        ("redis://:s3cret/@localhost", "state: not a URL"),
        ("redis://localhost:s3cret", "state: not a URL"),
        ("redis://localhost?s3cret", "state: not a URL"),
        ("http://:s3cret@localhost", "state: neither 'embedded' nor a redis://"),
        ("s3cret", "state: neither 'embedded' nor a redis://"),
        ("redis:/:s3cret@localhost", "state: not a URL such as redis://"),
        ("redis://localhost/s3cret", "state: not a URL such as redis://"),
        ("redis://localhost?socket_timeout=60", "state: the URL may have the options db, ssl_ca_certs"),
    ],
)
def test_a_state_that_cannot_be_is_refused_without_repeating_it(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        KVManagerConfig(state=url)
    assert "s3cret" not in f"{caught.value}{caught.value.__cause__}"


def test_the_password_of_the_state_store_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file = "redis://localhost", tmp_path / "password"
    file.write_text("from the file\n")
    assert KVManagerConfig(state=url).state_password() is None
    monkeypatch.setenv("OCTAVO_STATE_PASSWORD", "from the environment")
    assert KVManagerConfig(state=url).state_password() == "from the environment"
    config = KVManagerConfig(state=url, state_password_file=str(file))
    assert config.state_password() == "from the file"
    assert "from the file" not in repr(config)
    with pytest.raises(ConfigError, match=r"state_password_file: .*absent: No such file"):
        KVManagerConfig(state=url, state_password_file=str(tmp_path / "absent"))
