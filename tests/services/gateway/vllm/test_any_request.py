"""Whatever is asked is answered, or refused as the client's error."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.services.gateway.gateway_bench import ALPHABET, bench, one_answer, save_bytes_tokenizer

NUM_REQUESTS = 300
FLOATS = [0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 1e-30, 3e38, math.inf, -math.inf, math.nan]
INT32 = [0, 1, -1, 2, 20, 21, 64, 65, 2**31 - 1, -(2**31)]
UINT32 = [0, 1, 2, 64, 65, 2**31 - 1, 2**31, 2**32 - 1]
TEXTS = ["", "a", "abc", "\x00", "ö🙂", "{", "[", "(", '{"type": "object"}', "start: ", 'root ::= "a"', "x" * 2000]


def random_message(choose: random.Random) -> vllm.GenerateRequest:
    message = vllm.GenerateRequest(request_id=choose.choice(["r", "r\n", "", "x" * 129]), stream=choose.random() < 0.5)
    if choose.random() < 0.7:
        message.tokenized.input_ids.extend(
            choose.choices([*range(len(ALPHABET)), *UINT32], k=choose.choice([0, 1, 5, 63]))
        )
    else:
        message.text = choose.choice(TEXTS)
    for field in message.sampling_params.DESCRIPTOR.fields:
        if choose.random() < 0.12:
            set_field(message.sampling_params, field, choose)
    return message


def set_field(message: Any, field: Any, choose: random.Random) -> None:
    values = {
        field.CPPTYPE_FLOAT: FLOATS,
        field.CPPTYPE_INT32: INT32,
        field.CPPTYPE_UINT32: UINT32,
        field.CPPTYPE_BOOL: [False, True],
        field.CPPTYPE_STRING: TEXTS,
    }
    if field.name == "logit_bias":
        message.logit_bias[choose.choice(INT32)] = choose.choice(FLOATS)
    elif field.name == "choice":
        message.choice.choices.extend(choose.choices(TEXTS, k=choose.choice([0, 2])))
    elif field.is_repeated:
        getattr(message, field.name).extend(choose.choices(values[field.cpp_type], k=choose.choice([1, 17])))
    else:
        setattr(message, field.name, choose.choice(values[field.cpp_type]))


async def test_no_request_is_an_error_of_ours(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    model = save_bytes_tokenizer(tmp_path)
    seen = set()
    async with bench(model, one_answer) as made, grpc.aio.insecure_channel(made.address) as channel:
        stub: Any = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        for _ in range(NUM_REQUESTS):
            message = random_message(choose)
            call = stub.Generate(message)
            with suppress(grpc.aio.AioRpcError):
                assert [each async for each in call]
            code = await call.code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), (seed, await call.details(), message)
            seen.add(code)
    assert len(seen) == 2, seed
