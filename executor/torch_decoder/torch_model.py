"""A model that torch computes, on any device."""

from __future__ import annotations

import torch

from executor.attention import AnyBackend
from executor.loaded_model import LoadedModel
from executor.memory.arena import BlockArena
from executor.model_runner import ModelRunner
from executor.sampling.samplers import Sampler, TorchSampler
from executor.tensor_parallel import Ranks
from executor.torch_decoder.cuda_graphs import CudaGraphs
from executor.torch_decoder.decode_graphs import batch_sizes, sharing_sizes
from executor.torch_decoder.decoder import Decoder
from executor.torch_decoder.torch_runner import TorchRunner
from executor.weights import Parameters, Shard


class TorchModel(LoadedModel):
    """The decoder in torch with an attention backend.

    Args:
        shard: the part of the model that is computed here.
        dtype: of weights and activations.
        kv_dtype: how keys and values are stored.
        ranks: that compute the other parts.
        cuda_graphs: decode steps are recorded, where the device and the attention backend can do that.
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
        cuda_graphs: bool,
    ) -> None:
        self.layout = attention.block_layout(shard.model, block_size, kv_dtype)
        self.block_size = block_size
        self.kernels = attention.name
        self._attention = attention
        self._device = device
        self._graphs = CudaGraphs(device) if cuda_graphs and self._has_decode_plans() else None
        self._decoder = Decoder(shard, ranks)
        self._decoder.load(parameters.read_all(dtype=dtype, device=device))

    def arena(self, num_blocks: int) -> BlockArena:
        return BlockArena(self.layout, num_blocks=num_blocks, block_size=self.block_size, device=self._device)

    def runner(self, arena: BlockArena) -> ModelRunner:
        return TorchRunner(self._decoder, arena, self._attention, self._device, self._graphs)

    def num_graphs(self, max_sequences: int) -> int:
        return 0 if self._graphs is None else len(batch_sizes(max_sequences)) + len(sharing_sizes(max_sequences))

    def _has_decode_plans(self) -> bool:
        if self._device.type != "cuda":
            return False
        return self._attention.decode_plan(1, self.block_size, self.block_size, self._device) is not None

    def sampler(self) -> Sampler:
        return TorchSampler()
