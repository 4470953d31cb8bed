"""Attention over keys and values that lie in one piece: torch's, in every way that it has."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

Call = Callable[[], torch.Tensor]

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def decode_calls(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> dict[str, Call]:
    """One new token a row; those of torch's kernels that take it, also with the heads of a group as further queries,
    which reads keys and values once for all of them.

    Args:
        queries: [rows, heads, 1, head_dim].
        keys, values: [rows, kv_heads, context, head_dim].
    """
    rows, heads, _, head_dim = queries.shape
    folded = queries.view(rows, keys.shape[1], heads // keys.shape[1], head_dim)
    forms: dict[str, Call] = {"": lambda: F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)}
    if heads != keys.shape[1]:
        forms["folded "] = lambda: F.scaled_dot_product_attention(folded, keys, values)
    return _with_each_kernel(forms, keys.device)


def prefill_calls(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> dict[str, Call]:
    """The last tokens of each row, each attending to what is before it and to itself.

    Args:
        queries: [rows, heads, count, head_dim].
        keys, values: [rows, kv_heads, context, head_dim].
    """
    mask = causal_lower_right(queries.shape[2], keys.shape[2])
    form: Call = lambda: F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)  # noqa: E731
    return _with_each_kernel({"": form}, keys.device)


def _with_each_kernel(forms: dict[str, Call], device: torch.device) -> dict[str, Call]:
    """Those that run here; on a CPU, the one that torch takes."""
    if device.type == "cpu":
        return dict(forms)
    calls: dict[str, Call] = {}
    for kernel, backend in _KERNELS.items():
        for form, call in forms.items():
            limited = _limited(call, backend)
            try:
                limited()
            except RuntimeError:  # it does not take this
                continue
            calls[form + kernel] = limited
    return calls


def _limited(call: Call, backend: SDPBackend) -> Call:
    def limited() -> torch.Tensor:
        with sdpa_kernel(backend):
            return call()

    return limited
