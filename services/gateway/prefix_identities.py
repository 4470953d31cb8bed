"""The names that a prompt's blocks have in the KV managers' prefix caches."""

from __future__ import annotations

from gateway.prepared import PreparedRequest
from kvmanager.content import ROOT, ScopeMap, block_identity
from kvmanager.spec import Scope
from services.rpc.columns import pack_int32


def prefix_identities(request: PreparedRequest, block_size: int) -> list[bytes]:
    """Of all blocks that a KV manager could give the request: those before its last token, which is always computed."""
    spans = [
        (each.num_tokens, Scope(each.scope.salt, each.scope.owner, each.scope.narrowness)) for each in request.spans
    ]
    scopes = ScopeMap(spans, block_size)
    identities: list[bytes] = []
    parent = ROOT
    for index in range((len(request.prompt_token_ids) - 1) // block_size):
        token_ids = request.prompt_token_ids[index * block_size : (index + 1) * block_size]
        parent = block_identity(parent, pack_int32(token_ids), scopes[index].salt)
        identities.append(parent)
    return identities
