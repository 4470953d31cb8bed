"""vLLM's engine protocol, as routers speak it to an engine: ``vllm.grpc.engine.VllmEngine``.

Its messages come from the package `smg-grpc-proto`, which is an extra. Without it nothing else here can be imported.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.gateway.vllm.servicer import VllmEngineServicer

log = logging.getLogger(__name__)

SERVICE = "vllm.grpc.engine.VllmEngine"


def load_servicer() -> type[VllmEngineServicer] | None:
    """The servicer's class; None where the protocol's messages are not installed, which one line of the log says."""
    if importlib.util.find_spec("smg_grpc_proto") is None:
        log.info("vLLM's engine protocol is not served: smg-grpc-proto is not installed", extra={"service": SERVICE})
        return None
    from services.gateway.vllm.servicer import VllmEngineServicer

    return VllmEngineServicer
