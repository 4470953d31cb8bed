"""What must hold at any time, whatever happens in a mix."""

from __future__ import annotations

import pytest

from kvmanager.block_pool import BlockPool
from kvmanager.manager import KVManager
from kvmanager.replica import Replica
from kvmanager.spec import RequestSpec
from tests.oracle import Oracle, expected_beams, expected_best_of


class Shortfalls:
    """Blocks that are missing for what owners may have: none, but while new quotas come to hold, and then ever less."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[object, int]] = {}

    def check(self, pool: BlockPool) -> None:
        accounts = pool.accounts
        for account in accounts:
            excess = account.num_charged - account.max_blocks if account.max_blocks else 0
            self._compare(account, account.max_blocks, excess, f"{account.owner} is above its limit")
        reserved = {account.owner: account.reserved for account in accounts if account.reserved}
        missing = accounts.kept_for_owners({}) - pool.num_available
        self._compare(pool, reserved, missing, "a reservation is not kept")

    def _compare(self, whose: object, what: object, missing: int, message: str) -> None:
        """What holds may be out of reach when it begins to hold."""
        before, most = self._last.get(whose, (None, 0))
        assert missing <= max(most, 0) or (before is not None and before != what), message
        self._last[whose] = what, missing


def check_invariants(manager: KVManager, shortfalls: Shortfalls) -> None:
    """Nobody has more than it may, or less than it was promised."""
    manager.check_integrity()
    for replica in manager.replicas.values():
        memory = replica.memory
        shortfalls.check(memory.pool)
        accounts = memory.pool.accounts
        for account in accounts:
            settled = account.reserved == account.promised and account.max_blocks == account.quota.max_blocks
            assert settled or accounts.changing
        for request in replica.scheduler.running.values():
            num_shared = len(request.spec.prompt_token_ids) // memory.block_size
            tables = [sequence.table[:num_shared] for sequence in request.unfinished()]
            assert all(table == tables[0] for table in tables), "siblings have parted in their prompt"
    counters = manager.counters
    assert counters.cached_prompt_tokens <= counters.prompt_tokens


def check_tables(oracle: Oracle, replica: Replica) -> None:
    """With no step under way, the executor's block tables are ours, and it knows nobody whom we have forgotten."""
    sequences = replica.scheduler.sequences
    for sequence_id, known in oracle.sequences.items():
        sequence = sequences.get(sequence_id)
        if sequence is not None and sequence.resident and sequence.request.state.value == "running":
            assert known.table == [block.block_id for block in sequence.table]


def check_ranked(spec: RequestSpec, max_tokens: int, received: list[list[int]], scores: list[float | None]) -> None:
    """The best sequences came, best first, with their scores."""
    prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
    wanted: list
    if spec.beam is not None:
        wanted = expected_beams(prompt, spec.sampling, spec.beam, max_tokens, stop, spec.n)
    else:
        wanted = expected_best_of(prompt, spec.sampling, spec.n, spec.best_of, max_tokens, stop, spec.min_tokens)
    assert received == [each.token_ids for each in wanted]
    assert scores == pytest.approx([each.score for each in wanted])
