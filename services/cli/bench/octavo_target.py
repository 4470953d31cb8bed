"""Octavo over gRPC."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from octavo.client import AsyncClient, OctavoError, PromptLike
from services.cli.bench.target import Arrived, Model, RequestFailed, TargetUnusable, Usage
from services.cli.bench.workload import Request


class OctavoTarget:
    """Sends each request once: what fails is an error of the server's, not something to try again.

    Args:
        client: Is closed with this.
        model: Empty: the only one.
        sampling: The same for all requests.
        chat: Prompts are messages.
        response_interval: As of `Client.generate`.
    """

    def __init__(
        self,
        client: AsyncClient,
        model: str,
        sampling: dict[str, Any],
        *,
        chat: bool = False,
        response_interval: float | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._sampling = sampling
        self._chat = chat
        self._response_interval = response_interval

    async def model(self) -> Model:
        try:
            models = await self._client.models(timeout=10.0)
        except OctavoError as error:
            raise TargetUnusable(error.message) from error
        found = [each for each in models if self._model in ("", each.name)]
        if not found:
            raise TargetUnusable(f"there is no model {self._model!r}")
        return Model(found[0].name, found[0].vocab_size)

    async def send(self, request: Request, arrived: Arrived) -> Usage:
        prompt: PromptLike = request.prompt
        if self._chat:
            prompt = [{"role": "user", "content": str(request.prompt)}]
        responses = self._client.generate(
            prompt,
            model=self._model,
            response_interval=self._response_interval,
            max_tokens=request.max_tokens,
            **self._sampling,
        )
        usage = Usage()
        try:
            async with aclosing(responses) as stream:  # type: ignore[type-var]
                async for response in stream:
                    if response.token_ids:
                        arrived(len(response.token_ids))
                    if response.HasField("usage"):
                        counted = response.usage
                        usage = Usage(counted.prompt_tokens, counted.completion_tokens, counted.cached_tokens)
        except OctavoError as error:
            kind = error.status.name if error.from_server else "connection"
            raise RequestFailed(kind, error.message) from error
        return usage

    async def close(self) -> None:
        await self._client.close()
