"""The metadata of GGUF files that the gguf package wrote."""

import struct
from pathlib import Path

import gguf
import pytest

from gateway.errors import TokenizerError
from gateway.gguf_metadata import read_gguf_metadata


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65_535)
    writer.add_int16("i16", -32_768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "häuser ☕")
    writer.add_array("strings", ["", "a", "日本"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_every_type_is_read(path: Path) -> None:
    write(path)
    assert read_gguf_metadata(path) == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65_535,
        "i16": -32_768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "häuser ☕",
        "strings": ["", "a", "日本"],
        "numbers": [1, -2, 3],
        "floats": [0.5, -1.0],
    }


def test_a_file_cut_off_anywhere_is_refused(path: Path) -> None:
    write(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(TokenizerError, match="GGUF"):
            read_gguf_metadata(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 something else", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "not supported, only little-endian"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "not a readable GGUF file"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60), "past the end"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60), "not a readable GGUF file"),
    ],
)
def test_what_is_no_gguf_file_is_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        read_gguf_metadata(path)
