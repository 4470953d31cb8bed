"""The gateway and the KV manager call blocks by the same names."""

from __future__ import annotations

import random

import pytest

from gateway.prepared import PreparedRequest
from gateway.scope import Scope, ScopeSpan
from kvmanager.views import cached_identities
from octavo.v1 import kvmanager_pb2
from services.gateway.codec import encode_submission
from services.gateway.prefix_identities import prefix_identities
from services.kvmanager.codec import decode_submission
from tests.kvmanager.harness import Harness
from tests.services.gateway.prepared_requests import prepared


def random_request(rng: random.Random) -> PreparedRequest:
    """A prompt of some scopes, each narrower than the one before."""
    counts = [rng.randrange(1, 12) for _ in range(rng.randrange(1, 5))]
    spans = tuple(
        ScopeSpan(count, Scope(rng.randbytes(3), narrowness, "acme")) for narrowness, count in enumerate(counts)
    )
    return prepared([rng.randrange(50) for _ in range(sum(counts))], spans=spans, max_tokens=1)


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(5)])
def test_they_are_those_of_the_prefix_cache(seed: int) -> None:
    harness = Harness(block_size=4)
    request = random_request(random.Random(seed))
    message = kvmanager_pb2.Submission()
    message.CopyFrom(encode_submission(request, 1, None))
    spec = decode_submission(message, 1, harness.now)
    harness.submit(spec.handle, spec.prompt_token_ids, max_tokens=1, spans=spec.spans)
    harness.run()
    identities = prefix_identities(request, 4)
    assert len(identities) == (len(request.prompt_token_ids) - 1) // 4
    assert set(identities) <= cached_identities(harness.manager)
