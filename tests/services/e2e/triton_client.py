"""Triton's own client, unchanged, in front of Octavo. Runs in the environment of other clients, and prints what it got.

Arguments: the gateway's address, the model's name, and prompts.
"""

import asyncio
import json
import queue
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as asynchronous
from tritonclient.utils import InferenceServerException

GREEDY = json.dumps({"max_tokens": "24", "temperature": "0", "ignore_eos": True})
ENDLESS = json.dumps({"max_tokens": 450, "temperature": 0, "ignore_eos": True})


def inputs(client: Any, prompts: list[str], *, stream: bool = False, sampling: str = GREEDY) -> list[Any]:
    """As the example clients of Triton's vLLM backend make them."""
    text = client.InferInput("text_input", [len(prompts)], "BYTES")
    text.set_data_from_numpy(np.array([prompt.encode() for prompt in prompts], dtype=np.object_))
    parameters = client.InferInput("sampling_parameters", [1], "BYTES")
    parameters.set_data_from_numpy(np.array([sampling.encode()], dtype=np.object_))
    flags = {"stream": stream, "exclude_input_in_output": True, "return_num_output_tokens": True}
    tensors = [client.InferInput(name, [1], "BOOL") for name in flags]
    for tensor, flag in zip(tensors, flags.values(), strict=True):
        tensor.set_data_from_numpy(np.array([flag], dtype=bool))
    return [text, parameters, *tensors]


def texts(result: Any) -> list[str]:
    return [each.decode() for each in result.as_numpy("text_output")]


def ask(client: Any, model: str, prompts: list[str]) -> dict[str, Any]:
    """Everything that has one answer."""
    result = client.infer(model, inputs(blocking, prompts), request_id="all", parameters={"top_k": 3})
    bare = blocking.InferInput("text_input", [1, 1], "BYTES")
    bare.set_data_from_numpy(np.array([[prompts[0].encode()]], dtype=np.object_))
    limit = blocking.InferInput("max_tokens", [1, 1], "INT32")
    limit.set_data_from_numpy(np.array([[0]], dtype=np.int32))
    try:
        client.infer(model, [bare, limit])
        refusal = ""
    except InferenceServerException as error:
        refusal = f"{error.status()} {error.message()}"
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(model),
        "other_ready": client.is_model_ready("other"),
        "server": client.get_server_metadata().name,
        "inputs": [each.name for each in client.get_model_metadata(model).inputs],
        "decoupled": client.get_model_config(model).config.model_transaction_policy.decoupled,
        "id": result.get_response().id,
        "texts": texts(result),
        "num_tokens": result.as_numpy("num_output_tokens").tolist(),
        "refusal": refusal,
    }


def stream(client: Any, model: str, prompts: list[str]) -> dict[str, Any]:
    """One stream with all prompts at once, an error in between, and one request that is left before its end."""
    arrived: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    for number, prompt in enumerate(prompts):
        client.async_stream_infer(
            model,
            inputs(blocking, [prompt], stream=True),
            request_id=str(number),
            enable_empty_final_response=True,
        )
    client.async_stream_infer(model, inputs(blocking, [""], stream=True), request_id="empty")
    answers = {str(number): "" for number in range(len(prompts))}
    final, errors, responses = set(), [], 0
    while len(final) < len(prompts) or not errors:
        result, error = arrived.get(timeout=60)
        if error is not None:
            errors.append(error.message())
            continue
        response = result.get_response()
        assert response.id not in final, "a response after the final one"
        answers[response.id] += texts(result)[0]
        responses += 1
        if response.parameters["triton_final_response"].bool_param:
            final.add(response.id)
    client.async_stream_infer(model, inputs(blocking, prompts[:1], stream=True, sampling=ENDLESS), request_id="left")
    arrived.get(timeout=60)
    client.stop_stream(cancel_requests=True)
    return {"answers": answers, "errors": errors, "responses": responses}


async def ask_asynchronously(address: str, model: str, prompts: list[str]) -> dict[str, Any]:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, prompt in enumerate(prompts):
            tensors = inputs(asynchronous, [prompt], stream=True)
            yield {"model_name": model, "inputs": tensors, "request_id": str(number)}

    async with asynchronous.InferenceServerClient(address) as client:
        whole = texts(await client.infer(model, inputs(asynchronous, prompts)))
        answers = {str(number): "" for number in range(len(prompts))}
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            answers[result.get_response().id] += texts(result)[0]
        return {"live": await client.is_server_live(), "texts": whole, "answers": answers}


def main() -> None:
    address, model, *prompts = sys.argv[1:]
    with blocking.InferenceServerClient(address) as client:
        told = {"ask": ask(client, model, prompts), "stream": stream(client, model, prompts)}
    told["asynchronous"] = asyncio.run(ask_asynchronously(address, model, prompts))
    print(json.dumps(told))


main()
