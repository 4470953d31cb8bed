"""The demo model's GGUF file with its weights in bfloat16."""

from __future__ import annotations

from pathlib import Path

import gguf

from services.model_store import SMOLLM2, fetch_model

_WRITTEN_ANYWAY = ("general.architecture", "general.file_type", "general.quantization_version")


def bf16_gguf() -> Path:
    """The file in the cache; made where it is not there yet."""
    path = SMOLLM2.path.parent / "SmolLM2-135M-Instruct.BF16.gguf"
    if not path.is_file():
        scratch = path.with_suffix(".partial")
        _convert(fetch_model(SMOLLM2.name), scratch)
        scratch.rename(path)
    return path


def _convert(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in _WRITTEN_ANYWAY:
            kind, *element = field.types
            writer.add_key_value(name, field.contents(), kind, element[0] if element else None)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # Vectors are the norms' weights.
        matrix = len(tensor.shape) > 1
        dtype = gguf.GGMLQuantizationType.BF16 if matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(bf16_gguf())
