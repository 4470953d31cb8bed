"""What the model takes and gives, for clients that ask before they send anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.kserve import inference_pb2
from services.gateway.kserve.requests import OUTPUTS, TEXT_DATATYPE, TEXT_INPUT, VERSION
from services.gateway.kserve.settings import SETTINGS

PLATFORM = "octavo"

_ANY_SIZE = (-1,)
_ONE = (1,)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Shapes are those of one prompt."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def data_type(self) -> str:
        """The datatype as configurations name it."""
        return "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"


def model_metadata(model_name: str) -> inference_pb2.ModelMetadataResponse:
    """The answer of ModelMetadata."""
    tensor = inference_pb2.ModelMetadataResponse.TensorMetadata
    return inference_pb2.ModelMetadataResponse(
        name=model_name,
        versions=[VERSION],
        platform=PLATFORM,
        inputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in _inputs()],
        outputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in _outputs()],
    )


def model_config(model_name: str) -> inference_pb2.ModelConfigResponse:
    """The answer of ModelConfig."""
    config = inference_pb2.ModelConfig(
        name=model_name,
        platform=PLATFORM,
        backend=PLATFORM,
        input=[
            inference_pb2.ModelInput(name=each.name, data_type=each.data_type, dims=each.shape, optional=each.optional)
            for each in _inputs()
        ],
        output=[
            inference_pb2.ModelOutput(name=each.name, data_type=each.data_type, dims=each.shape) for each in _outputs()
        ],
        model_transaction_policy=inference_pb2.ModelTransactionPolicy(decoupled=True),
    )
    return inference_pb2.ModelConfigResponse(config=config)


def _inputs() -> Iterator[_Tensor]:
    yield _Tensor(TEXT_INPUT, TEXT_DATATYPE, _ONE)
    for name, setting in SETTINGS.items():
        yield _Tensor(name, setting.datatype, _ANY_SIZE if setting.is_list else _ONE, optional=True)


def _outputs() -> Iterator[_Tensor]:
    for name, datatype in OUTPUTS.items():
        yield _Tensor(name, datatype, _ANY_SIZE)
