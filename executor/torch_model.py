"""A model that torch computes, on any device."""

from __future__ import annotations

import torch

from executor.arena import BlockArena
from executor.attention import AnyBackend
from executor.decoder import Decoder
from executor.loaded_model import LoadedModel
from executor.model_runner import ModelRunner
from executor.samplers import Sampler, TorchSampler
from executor.tensor_parallel import Ranks
from executor.torch_runner import TorchRunner
from executor.weights import Parameters, Shard


class TorchModel(LoadedModel):
    """The decoder in torch with an attention backend.

    Args:
        shard: the part of the model that is computed here.
        dtype: of weights and activations.
        kv_dtype: how keys and values are stored.
        ranks: that compute the other parts.
    """

    def __init__(
        self,
        shard: Shard,
        parameters: Parameters,
        attention: AnyBackend,
        *,
        block_size: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self.layout = attention.block_layout(shard.model, block_size, kv_dtype)
        self.block_size = block_size
        self.kernels = attention.name
        self._attention = attention
        self._device = device
        self._decoder = Decoder(shard, ranks)
        self._decoder.load(parameters.read_all(dtype=dtype, device=device))

    def arena(self, num_blocks: int) -> BlockArena:
        return BlockArena(self.layout, num_blocks=num_blocks, block_size=self.block_size, device=self._device)

    def runner(self, arena: BlockArena) -> ModelRunner:
        return TorchRunner(self._decoder, arena, self._attention, self._device)

    def sampler(self) -> Sampler:
        return TorchSampler()
