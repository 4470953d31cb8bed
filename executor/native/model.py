"""A model that the CPU's own kernels compute."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from executor.description import DecoderDescription
from executor.loaded_model import LoadedModel
from executor.memory.arena import BlockArena
from executor.model_runner import ModelRunner
from executor.native.attention import AttentionKernels, NativeBlockLayout
from executor.native.decoder import NativeDecoder
from executor.native.library import Crew, Library
from executor.native.linear import WeightKind
from executor.native.memory import Bytes, allocate, huge_page_bytes, populate_in_background
from executor.native.packed_file import Key, Writer, open_or_build, packed_path, source_key
from executor.native.packing import pack_parameter, plan_matrices
from executor.native.runner import NativeRunner
from executor.native.sampling import NativeSampler
from executor.native.structures import KvKind
from executor.progress import Progress
from executor.sampling.samplers import Sampler
from executor.weights import Parameters

_log = logging.getLogger(__name__)

# Raised whenever a packed matrix looks different, so that files of before are made anew.
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class NativeFormat:
    """How weights, keys and values are stored."""

    weights: WeightKind
    kv: KvKind


class NativeModel(LoadedModel):
    """The decoder in native code.

    Args:
        files: what the parameters are read from; they, and how they are packed, name the file that keeps them.
        cache: folder of that file; None keeps nothing.
        on_progress: told of what is read from it.
    """

    def __init__(
        self,
        library: Library,
        model: DecoderDescription,
        parameters: Parameters,
        form: NativeFormat,
        *,
        block_size: int,
        threads: int,
        files: list[Path],
        cache: Path | None,
        on_progress: Progress,
    ) -> None:
        self.block_size = block_size
        self.kernels = f"cpu/{library.level}"
        self._library = library
        self._model = model
        self._crew = Crew(library, threads)
        self.layout: NativeBlockLayout = AttentionKernels(library, self._crew).block_layout(
            form.kv,
            num_layers=model.num_layers,
            block_size=block_size,
            kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
        )
        self._plans = plan_matrices(model, form.weights)

        def build(writer: Writer) -> None:
            for name in parameters:
                writer.add(name, pack_parameter(library, parameters, name, self._plans))

        path = cache and packed_path(cache, files[0], form.weights.name.lower())
        self._buffers = open_or_build(path, _key(files, form.weights), build, on_progress)

    def arena(self, num_blocks: int) -> BlockArena:
        memory = allocate(num_blocks * self.layout.bytes_per_block)
        populate_in_background([memory], lambda done: _report(memory, done))
        return BlockArena(
            self.layout,
            num_blocks=num_blocks,
            block_size=self.block_size,
            device=torch.device("cpu"),
            memory=torch.from_numpy(memory),
        )

    def runner(self, arena: BlockArena) -> ModelRunner:
        first_layer = self.layout.cache(arena, 0)
        decoder = NativeDecoder(
            self._library, self._model, self._buffers, self._plans, first_layer, self.layout.layer_stride
        )
        return NativeRunner(decoder, self._model, arena, self._crew, self.kernels)

    def sampler(self) -> Sampler:
        return NativeSampler(self._library, self._crew, self._model.vocab_size)


def _key(files: list[Path], kind: WeightKind) -> Key:
    return source_key(files, format=_FORMAT, weights=kind.name.lower())


def _report(memory: Bytes, populated: bool) -> None:
    shares = {"bytes": memory.nbytes, "huge_page_bytes": huge_page_bytes(memory), "touched_ahead": populated}
    _log.info("key/value memory is ready", extra=shares)
