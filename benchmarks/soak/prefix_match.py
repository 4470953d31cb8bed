"""Whether what an answer says of its prefix match can be true."""

from octavo.v1 import common_pb2, inference_pb2


def check_prefix_match(
    request: inference_pb2.GenerateRequest, usage: common_pb2.Usage, block_size: int, alone: bool
) -> list[str]:
    """What contradicts itself in a complete request's usage.

    Args:
        request: What was asked for.
        usage: Of the whole request.
        block_size: Tokens in a block.
        alone: Nothing else ran. Otherwise blocks that others computed meanwhile are among the cached tokens too, and
            the match can have ended before them.
    """
    prompt, cached, end = usage.prompt_tokens, usage.cached_tokens, usage.prefix_match_end
    name = common_pb2.PrefixMatchEnd.Name(end) if end in common_pb2.PrefixMatchEnd.values() else str(end)
    full_blocks, rest = divmod(prompt, block_size)
    problems = []
    if not 0 <= cached < prompt:
        problems.append(f"{cached} cached tokens of {prompt}")
    if end not in common_pb2.PrefixMatchEnd.values() or end == common_pb2.PREFIX_MATCH_END_UNSPECIFIED:
        problems.append(f"the prefix match ended with {name}")
    elif end == common_pb2.PREFIX_MATCH_END_LAST_TOKEN:
        # Full blocks are always found; of the last one a part may be copied, where that pays.
        fits = cached == prompt - 1 or (rest == 0 and cached >= prompt - block_size)
    elif end == common_pb2.PREFIX_MATCH_END_PARTIAL_BLOCK:
        fits = rest > 0 and cached // block_size == full_blocks and cached < prompt - 1
    else:
        fits = not alone or (cached // block_size < full_blocks and cached < prompt - 1)
    if not problems and not fits:
        problems.append(f"the prefix match ended with {name} after {cached} of {prompt} tokens")
    reusable = _reusable_tokens(request, prompt, block_size)
    if cached > reusable:
        problems.append(f"{cached} cached tokens, where others can have left {reusable} at most")
    return problems


def _reusable_tokens(request: inference_pb2.GenerateRequest, prompt: int, block_size: int) -> int:
    """Tokens before the first block with one that only this request may reuse, where its ids say where that is."""
    scope = request.cache_scope.WhichOneof("scope")
    if not request.prompt.HasField("segmented"):
        return 0 if scope == "request" else prompt
    before = 0
    for segment in request.prompt.segmented.segments:
        own = segment.cache_scope.WhichOneof("scope") if segment.HasField("cache_scope") else scope
        if own == "request":
            return before // block_size * block_size
        if not segment.HasField("tokens"):
            return prompt
        before += len(segment.tokens.token_ids)
    return prompt
