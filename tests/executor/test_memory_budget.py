from __future__ import annotations

import pytest
import torch

from executor.errors import SettingsError
from executor.memory.free_memory import available_in_meminfo, free_memory, left_in_cgroup
from executor.memory.memory_budget import blocks_in, parse_budget
from services.config import ConfigError, ExecutorConfig


def _nothing_asked():
    raise AssertionError("a size needs no look at what is free")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        (" 1.5 gib ", 3 << 29),
        ("2GB", 2_000_000_000),
        ("64KiB", 65536),
        ("1TiB", 1 << 40),
        ("100B", 100),
    ],
)
def test_sizes(text, expected):
    assert parse_budget(text, _nothing_asked) == expected


@pytest.mark.parametrize(("text", "expected"), [("40%", 400), ("100%", 1000), ("12.5 %", 125)])
def test_shares_of_what_is_free(text, expected):
    assert parse_budget(text, lambda: 1000) == expected


@pytest.mark.parametrize("text", ["", "512", "-1GiB", "MiB", "1,5GiB", "half", "0%", "101%", "5XB", "nan%"])
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(SettingsError, match="kv_memory"):
        parse_budget(text, lambda: 1000)


@pytest.mark.parametrize("text", ["0", " 0 ", "0B", "0MiB", "0%", "0.0%"])
def test_nothing_is_a_budget_only_where_it_may_be(text):
    assert parse_budget(text, _nothing_asked, may_be_nothing=True) == 0
    with pytest.raises(SettingsError, match="kv_memory"):
        parse_budget(text, _nothing_asked)


@pytest.mark.parametrize("text", ["", "512", "half", "101%", "5XB", "0XB"])
def test_refusals_name_the_setting(text):
    with pytest.raises(SettingsError, match=r"^host_memory"):
        parse_budget(text, _nothing_asked, name="host_memory", may_be_nothing=True)
    with pytest.raises(SettingsError, match=r"^host_memory '10B' is 10 bytes"):
        blocks_in(10, 300, "10B", name="host_memory")


def test_whole_blocks():
    assert blocks_in(1000, 300, "1000B") == 3
    with pytest.raises(SettingsError, match=r"'10B' is 10 bytes, less than one block of 300"):
        blocks_in(10, 300, "10B")


def test_meminfo():
    assert available_in_meminfo("MemTotal: 9 kB\nMemFree:  3 kB\nMemAvailable:    2048 kB\n") == 2 << 20
    with pytest.raises(ValueError, match="MemAvailable"):
        available_in_meminfo("MemTotal: 9 kB\n")


def test_limit_of_a_container(tmp_path):
    assert left_in_cgroup(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert left_in_cgroup(tmp_path) == 450
    (tmp_path / "memory.current").write_text("2000\n")
    assert left_in_cgroup(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert left_in_cgroup(tmp_path) is None


def test_free_memory_of_this_machine_is_positive():
    assert free_memory(torch.device("cpu")) > 0


@pytest.mark.parametrize(("text", "blocks"), [("0", 0), ("60KiB", 10), ("61KiB", 10), ("6KiB", 1)])
def test_host_blocks(llama, load, text, blocks):
    """A block takes 6 KiB."""
    executor = load(llama[0], host_memory=text)
    assert executor.info.num_host_blocks == blocks


def test_a_share_of_the_hosts_memory(llama, load, monkeypatch):
    monkeypatch.setattr("executor.loader.free_memory", lambda device: 120 * 1024 * (device.type == "cpu"))
    assert load(llama[0], host_memory="50%").info.num_host_blocks == 10


@pytest.mark.parametrize("text", ["1KiB", "60 apples", "-1"])
def test_host_memory_that_is_refused(llama, load, text):
    with pytest.raises(SettingsError, match=r"^host_memory"):
        load(llama[0], host_memory=text)


def test_the_configuration_takes_what_the_executor_takes():
    assert ExecutorConfig(model="m").host_memory == "256MiB"
    for text, expected in (("0", "0B"), ("4096", "4096B"), ("10%", "10%")):
        config = ExecutorConfig(model="m", host_memory=text)
        assert config.host_memory == expected
        parse_budget(config.host_memory, lambda: 1000, may_be_nothing=True)
    with pytest.raises(ConfigError, match="host_memory"):
        ExecutorConfig(model="m", host_memory="half")
