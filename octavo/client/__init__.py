"""A client of Octavo's public service: plain Python in and out, one class for threads, one for asyncio.

with Client("127.0.0.1:50051") as client:
    for response in client.generate("The sky is", max_tokens=20):
        print(response.text, end="")

    for response in client.generate("A person as JSON: ", json_schema={"type": "object"}):
        print(response.text, end="")

    for beam in client.generate("The sky is", beam_width=4, n=2):
        print(beam.score, beam.text)

    pin = client.pin(manual, ttl=3600, cache_scope="app")
    client.generate([Segment(manual, "app"), Segment(question, "request")])

with Client(["gateway-a:50051", "gateway-b:50051"], retry=RetryPolicy(patience=300)) as client: ...
"""

from octavo.client.asynchronous import AsyncClient
from octavo.client.blocking import Client
from octavo.client.errors import OctavoError
from octavo.client.retries import RetryPolicy
from octavo.messages import PromptLike, ScopeLike, Segment, as_prompt, generate_request

__all__ = [
    "AsyncClient",
    "Client",
    "OctavoError",
    "PromptLike",
    "RetryPolicy",
    "ScopeLike",
    "Segment",
    "as_prompt",
    "generate_request",
]
