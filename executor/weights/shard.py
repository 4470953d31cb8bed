"""Which part of a model one of several ranks has (Megatron-LM: Shoeybi et al., arXiv 1909.08053, section 3).

The first matrix of each block is cut by outputs (whole heads, or units of the MLP), the second one by the inputs that
these are; what the ranks then have are terms of a sum. The vocabulary is cut too. Everything else is on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from executor.description import DecoderDescription
from executor.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has of a parameter.

    Attributes:
        rows: of the whole parameter, to be put one below the other; None: all.
        columns: the same along the second dimension.
        is_zero: zeros stand for it: another rank has it whole.
    """

    rows: tuple[range, ...] | None = None
    columns: range | None = None
    is_zero: bool = False


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a model.

    Attributes:
        model: the description of a decoder that has only this part.
        vocabulary: tokens whose embeddings, and whose rows of the output head, are in it.
        vocab_size: how many tokens all ranks have.
    """

    model: DecoderDescription
    vocabulary: range
    vocab_size: int
    _parts: Mapping[str, Part]

    def part(self, parameter: str) -> Part:
        """What it has of one of the whole decoder's parameters."""
        return self._parts.get(".".join(parameter.split(".")[-2:]), WHOLE)


def whole(model: DecoderDescription) -> Shard:
    """All of it."""
    return Shard(model, range(model.vocab_size), model.vocab_size, {})


def shard(model: DecoderDescription, rank: int, size: int) -> Shard:
    """What rank `rank` of `size` has.

    Key/value heads that are fewer than the ranks are repeated: those ranks whose query heads share one each have it.

    Raises:
        SettingsError: the model can't be cut into so many parts.
    """
    if size == 1:
        return whole(model)
    _check_divisible(model, size)
    heads, inner = share(model.num_heads, rank, size), share(model.intermediate_size, rank, size)
    group = model.num_heads // model.num_kv_heads
    kv_heads = range(heads.start // group, (heads.stop - 1) // group + 1)
    vocabulary = share(model.vocab_size, rank, size)
    part_of_model = replace(
        model,
        vocab_size=len(vocabulary),
        num_heads=len(heads),
        num_kv_heads=len(kv_heads),
        intermediate_size=len(inner),
    )
    parts = _parts(model, heads, kv_heads, inner, vocabulary, is_first=rank == 0)
    return Shard(part_of_model, vocabulary, model.vocab_size, parts)


def _parts(
    model: DecoderDescription, heads: range, kv_heads: range, inner: range, vocabulary: range, *, is_first: bool
) -> dict[str, Part]:
    """By the last two words of a parameter's name; what is missing is whole."""
    queries, keys = _entries(heads, model.head_dim), _entries(kv_heads, model.head_dim)
    num_queries, num_keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    qkv = Part(rows=(queries, _after(num_queries, keys), _after(num_queries + num_keys, keys)))
    halves = (inner, _after(model.intermediate_size, inner)) if model.gated_mlp else (inner,)
    tokens = Part(rows=(vocabulary,))
    # Added once, whichever rank does it.
    added = Part(is_zero=not is_first)
    return {
        "embedding.weight": tokens,
        "head.weight": tokens,
        "qkv.weight": qkv,
        "qkv.bias": qkv,
        "attention_out.weight": Part(columns=queries),
        "attention_out.bias": added,
        "mlp_in.weight": Part(rows=halves),
        "mlp_in.bias": Part(rows=halves),
        "mlp_out.weight": Part(columns=inner),
        "mlp_out.bias": added,
    }


def _check_divisible(model: DecoderDescription, size: int) -> None:
    for count, what in ((model.num_heads, "attention heads"), (model.intermediate_size, "units of the MLP")):
        if count % size:
            raise SettingsError(f"tensor_parallel_size {size}: the model's {count} {what} can't be divided by it")
    if model.num_kv_heads % size and size % model.num_kv_heads:
        heads = f"the model's {model.num_kv_heads} key/value heads"
        raise SettingsError(f"tensor_parallel_size {size}: {heads} can't be divided by it, nor it by their number")


def share(count: int, rank: int, size: int) -> range:
    """Which of `count` things in a row a rank has. Ranks have equally many, or some one more than others."""
    return range(count * rank // size, count * (rank + 1) // size)


def _entries(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _after(offset: int, entries: range) -> range:
    return range(offset + entries.start, offset + entries.stop)
