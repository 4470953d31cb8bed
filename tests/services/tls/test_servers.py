"""Servers with certificates: who gets in, who may call what, and what happens to those inside when they are renewed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octavo.channel import open_aio_channel
from services.certificates import renew_certificates
from services.config import ConfigError, ExecutorConfig, GatewayConfig, KVManagerConfig, ServiceConfig
from services.rpc.channel import connector
from services.rpc.roles import CALLERS
from services.rpc.server import RpcServer
from tests.ports import free_port
from tests.services.tls.echo_server import ECHO, echo

PATIENCE = 20.0


def settings(folder: Path, role: str) -> dict[str, str]:
    return {
        "tls_cert": str(folder / f"{role}.pem"),
        "tls_key": str(folder / f"{role}-key.pem"),
        "tls_ca": str(folder / "ca.pem"),
    }


@asynccontextmanager
async def serving(config: ServiceConfig, callers: Any = None) -> AsyncIterator[str]:
    server = RpcServer(config, [ECHO], callers=callers)
    server.grpc.add_generic_rpc_handlers([echo()])
    address = await server.start()
    await server.set_serving(True)
    yield address
    await server.stop(0)


def executor_at(folder: Path, **more: Any) -> ExecutorConfig:
    return ExecutorConfig(model="none", port=free_port(), **settings(folder, "executor"), **more)


def caller(folder: Path, role: str, callee: Any = "executor") -> Callable[[str], grpc.aio.Channel]:
    return connector(KVManagerConfig(**settings(folder, role)), callee)


async def call(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary(f"/{ECHO}/Once")(b"hello", timeout=PATIENCE)
    return answer


async def stream_once(channel: grpc.aio.Channel, method: str) -> None:
    stream = channel.stream_stream(f"/{ECHO}/{method}")(timeout=PATIENCE)
    await stream.write(b"hello")
    await stream.read()


async def refusal(channel: grpc.aio.Channel, method: str = "Once") -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call(channel) if method == "Once" else stream_once(channel, method))
    return caught.value


async def test_who_may_call_gets_through_whatever_the_address_is(certificates: Path):
    """An executor is found by its address, which is in no certificate."""
    async with (
        serving(executor_at(certificates, host="127.0.0.2"), CALLERS["executor"]) as address,
        caller(certificates, "kvmanager")(address) as channel,
    ):
        assert await call(channel) == b"hello"
        for method in ("Many", "ManyByHand"):
            stream = channel.stream_stream(f"/{ECHO}/{method}")()
            for number in range(3):
                await stream.write(b"%d" % number)
                assert await stream.read() == b"%d" % number
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("role", ["gateway", "executor", "operator"])
@pytest.mark.parametrize("method", ["Once", "Many", "ManyByHand"])
async def test_another_role_is_refused_by_name(certificates: Path, role: str, method: str):
    async with (
        serving(executor_at(certificates), CALLERS["executor"]) as address,
        caller(certificates, role)(address) as channel,
    ):
        error = await refusal(channel, method)
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert error.details() == f"called as {role}; only kvmanager may"


async def test_a_certificate_without_a_role_is_refused(make, tmp_path, monkeypatch):
    folder = make()
    others = tmp_path / "without roles"
    shutil.copytree(folder, others)
    monkeypatch.setattr("services.certificates.role_name", lambda role: f"{role}.elsewhere")
    renew_certificates(others, ["x"], 1, datetime.now(timezone.utc))
    async with (
        serving(executor_at(folder), CALLERS["executor"]) as address,
        caller(others, "kvmanager")(address) as channel,
    ):
        error = await refusal(channel)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert error.details() == "the caller's certificate names no role"


async def test_nobody_gets_in_without_a_certificate_of_the_authority(certificates: Path, make):
    others = make("others")
    async with serving(executor_at(certificates), CALLERS["executor"]) as address:
        plain = connector(KVManagerConfig(), "executor")(address)
        only_trusting = open_aio_channel(address, tls_ca=certificates / "ca.pem")
        strangers = caller(others, "kvmanager")(address)
        for channel in (plain, only_trusting, strangers):
            async with channel:
                assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_is_not_what_it_should_be_is_not_called(certificates: Path):
    """Whoever got hold of a gateway's key can't pose as an executor."""
    config = KVManagerConfig(port=free_port(), **settings(certificates, "gateway"))
    async with (
        serving(config, ("kvmanager",)) as address,
        caller(certificates, "kvmanager")(address) as channel,
    ):
        error = await refusal(channel)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_anybody_with_a_certificate_may_ask_for_health_and_reflection(certificates: Path):
    async with (
        serving(executor_at(certificates), CALLERS["executor"]) as address,
        caller(certificates, "executor")(address) as channel,
    ):
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=PATIENCE)
        await reflected.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = (await reflected.read()).list_services_response.service
        assert ECHO in {service.name for service in services}


async def test_renewed_certificates_are_used_without_a_restart_and_streams_go_on(make):
    folder = make()
    connect = caller(folder, "kvmanager")
    async with serving(executor_at(folder), CALLERS["executor"]) as address, connect(address) as before:
        stream = before.stream_stream(f"/{ECHO}/Many")()
        await stream.write(b"1")
        assert await stream.read() == b"1"
        shown = await certificate_shown(address, folder)
        renew_certificates(folder, (), 30, datetime.now(timezone.utc))
        assert await certificate_shown(address, folder) != shown
        async with connect(address) as after:
            assert await call(after) == b"hello"
        await stream.write(b"2")
        assert await stream.read() == b"2"


async def certificate_shown(address: str, folder: Path) -> bytes:
    """What the server shows to a new connection."""
    import ssl

    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "operator.pem", folder / "operator-key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


async def test_the_public_is_served_without_certificates_of_its_own(certificates: Path):
    config = GatewayConfig(model="none", port=free_port(), **settings(certificates, "gateway"))
    async with serving(config) as address, open_aio_channel(address, tls_ca=certificates / "ca.pem") as channel:
        assert await call(channel) == b"hello"


async def test_the_public_may_see_another_certificate_than_the_services(certificates: Path, make):
    public = make("public")
    pair = {"public_tls_cert": str(public / "gateway.pem"), "public_tls_key": str(public / "gateway-key.pem")}
    config = GatewayConfig(model="none", port=free_port(), **settings(certificates, "gateway"), **pair)
    async with serving(config) as address:
        async with open_aio_channel(address, tls_ca=public / "ca.pem") as channel:
            assert await call(channel) == b"hello"
        async with open_aio_channel(address, tls_ca=certificates / "ca.pem") as channel:
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE
        async with open_aio_channel(address) as channel:
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("host", "tls", "callers", "warned"),
    [
        ("0.0.0.0", False, ("kvmanager",), True),
        ("0.0.0.0", True, ("kvmanager",), False),
        ("0.0.0.0", False, None, False),
        ("127.0.0.1", False, ("kvmanager",), False),
        ("localhost", False, ("kvmanager",), False),
        ("::1", False, ("kvmanager",), False),
    ],
)
async def test_an_inner_service_that_anybody_may_reach_says_so(certificates, caplog, host, tls, callers, warned):
    config = ExecutorConfig(
        model="none", host=host, port=free_port(), **(settings(certificates, "executor") if tls else {})
    )
    async with serving(config, callers):
        warnings = [record for record in caplog.records if "without a certificate" in record.getMessage()]
        assert len(warnings) == warned


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key", "tls_ca"])
def test_the_files_are_given_together(certificates: Path, missing: str):
    given = settings(certificates, "kvmanager")
    del given[missing]
    with pytest.raises(ConfigError, match=f"^{missing}: is missing; tls_cert, tls_key, tls_ca are given together"):
        KVManagerConfig(**given)


def test_the_public_pair_is_given_together(certificates: Path):
    with pytest.raises(ConfigError, match="public_tls_key: is missing"):
        GatewayConfig(model="none", public_tls_cert=str(certificates / "gateway.pem"))
