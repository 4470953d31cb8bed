"""What Triton calls the types of tensors."""

from __future__ import annotations

import torch

TRITON_NAMES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
}
