"""A model that torch computes, on any device."""

from __future__ import annotations

import torch

from executor.arena import BlockArena
from executor.attention import AnyBackend
from executor.decoder import Decoder
from executor.description import DecoderDescription
from executor.loaded_model import LoadedModel
from executor.model_runner import ModelRunner
from executor.samplers import Sampler, TorchSampler
from executor.torch_runner import TorchRunner
from executor.weights import Parameters


class TorchModel(LoadedModel):
    """The decoder in torch with an attention backend.

    Args:
        dtype: of weights and activations.
        kv_dtype: how keys and values are stored.
    """

    def __init__(
        self,
        model: DecoderDescription,
        parameters: Parameters,
        attention: AnyBackend,
        *,
        block_size: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layout = attention.block_layout(model, block_size, kv_dtype)
        self.block_size = block_size
        self.kernels = attention.name
        self._attention = attention
        self._device = device
        self._decoder = Decoder(model)
        self._decoder.load(parameters.read_all(dtype=dtype, device=device))

    def arena(self, num_blocks: int) -> BlockArena:
        return BlockArena(self.layout, num_blocks=num_blocks, block_size=self.block_size, device=self._device)

    def runner(self, arena: BlockArena) -> ModelRunner:
        return TorchRunner(self._decoder, arena, self._attention, self._device)

    def sampler(self) -> Sampler:
        return TorchSampler()
