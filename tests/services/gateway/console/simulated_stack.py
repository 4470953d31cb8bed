"""A stack that is imagined, for the console to show: executors, tenants and requests that come, grow, swap and end.

It makes the messages of MonitoringService as the gateway's own Monitoring does, from a simple model of memory: prefixes
are shared, samples share their prompt, blocks are cached when their request ends, the youngest is swapped out for want
of blocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from octavo.v1 import common_pb2, inference_pb2, memory_pb2, monitoring_pb2
from services.gateway.viewers import Viewer
from services.rpc.status import RpcError

BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
BYTES_PER_BLOCK = 16 * 36_864
STEP_SECONDS = 0.25
WAITING, RUNNING = monitoring_pb2.REQUEST_STATE_WAITING, monitoring_pb2.REQUEST_STATE_RUNNING
SWAPPED, ENDED = monitoring_pb2.REQUEST_STATE_SWAPPED, monitoring_pb2.REQUEST_STATE_ENDED


class SimulatedViewers:
    """Keys by what they open; without keys everybody sees all."""

    def __init__(self, keys: dict[str, str | None]) -> None:
        self.keys = keys

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Viewer:
        if not self.keys:
            return Viewer(None)
        given = dict(metadata).get("authorization", "")
        key = str(given).removeprefix("Bearer ")
        if key not in self.keys:
            raise RpcError(grpc.StatusCode.UNAUTHENTICATED, "the call needs a valid API key", "API_KEY_NEEDED")
        return Viewer(self.keys[key])


@dataclass
class Cell:
    """A physical block."""

    references: int = 0
    cached: bool = False
    owner: str = ""
    fill: int = 0
    identity: bytes = b""


@dataclass
class Pool:
    """One tier of one executor."""

    tier: int
    cells: list[Cell]

    def take(self, count: int, owner: str) -> list[int] | None:
        """Free ones first, then cached ones; None where there are too few."""
        free = [i for i, cell in enumerate(self.cells) if not cell.references and not cell.cached]
        cached = [i for i, cell in enumerate(self.cells) if not cell.references and cell.cached]
        taken = (free + cached)[:count]
        if len(taken) < count:
            return None
        for i in taken:
            self.cells[i] = Cell(1, owner=owner)
        return taken

    def give_back(self, ids: Iterable[int], *, keep: bool) -> None:
        for i in ids:
            cell = self.cells[i]
            cell.references -= 1
            if not cell.references:
                cell.cached = keep and cell.fill == BLOCK_SIZE
                if not cell.cached:
                    self.cells[i] = Cell()

    def count(self) -> memory_pb2.PoolState:
        used = sum(cell.references > 0 for cell in self.cells)
        cached = sum(cell.references == 0 and cell.cached for cell in self.cells)
        total = len(self.cells)
        return memory_pb2.PoolState(
            num_blocks=total, free_blocks=total - used - cached, cached_blocks=cached, referenced_blocks=used
        )


@dataclass
class Life:
    """A request."""

    view: monitoring_pb2.RequestView
    n: int
    true_output: int
    system: str
    timeline: monitoring_pb2.Timeline = field(default_factory=monitoring_pb2.Timeline)
    tables: list[list[int]] = field(default_factory=list)
    cached_blocks: int = 0

    def decide(self, kind: int, now: float, **fields: object) -> None:
        arrived = self.view.arrived.ToMicroseconds() / 1e6
        decision = self.timeline.decisions.add(kind=kind, executor=self.view.executor, **fields)
        decision.at.FromMicroseconds(max(0, int((now - arrived) * 1e6)))

    @property
    def lengths(self) -> list[int]:
        each = self.view.output_tokens // self.n
        return [self.view.computed_tokens + each] * len(self.tables)


class SimulatedStack:
    """Viewed through the methods of Monitoring. `tick` takes it one step further.

    Args:
        seed: what happens depends on nothing else, and on `start`, the time in seconds at the beginning.
    """

    def __init__(
        self,
        seed: int,
        *,
        start: float,
        executors: tuple[str, ...] = ("10.0.3.11:50061", "10.0.3.12:50061"),
        num_device: int = 3000,
        num_host: int = 768,
        tenants: tuple[str, ...] = ("atlas", "borealis", "chat-eu", "documents"),
        target: int = 30,
    ) -> None:
        self._random = random.Random(seed)
        self.now = start
        self.tenants = tenants
        self.ready = True
        self.state_available = True
        self.target = target
        self.pools = {
            name: (
                Pool(common_pb2.TIER_DEVICE, [Cell() for _ in range(num_device)]),
                Pool(common_pb2.TIER_HOST, [Cell() for _ in range(num_host)]),
            )
            for name in executors
        }
        self.live: list[Life] = []
        self.ended: deque[Life] = deque(maxlen=1000)
        self.counters = memory_pb2.MemoryCounters()
        self.history: deque[monitoring_pb2.Status] = deque(maxlen=300)
        self._prefixes: dict[tuple[str, str], list[int]] = {}
        self._count = 0
        self._batch = (0, 0, 0)
        self.seconds_per_tick = 0.0
        """How long a tick takes where it goes on by itself."""

    # What happens

    def tick(self) -> None:
        self.now += STEP_SECONDS
        self.counters.steps += 5
        waves = self.target * (1.15 if int(self.now / 40) % 2 else 0.85)
        while len(self.live) < waves * len(self.pools):
            self.submit()
        self._admit()
        prefill = sum(self._prefill(life) for life in list(self.live) if life.view.state == RUNNING)
        decode = sum(self._decode(life) for life in list(self.live) if life.view.state == RUNNING)
        running = [life for life in self.live if life.view.state == RUNNING]
        self._batch = sum(len(life.tables) for life in running), prefill // 5, decode // 5
        if int(self.now / STEP_SECONDS) % 4 == 0:
            self.history.append(self.status(Viewer(None)))

    def submit(self, *, tenant: str = "", n: int = 0, request_id: str = "") -> Life:
        self._count += 1
        tenant = tenant or self._random.choices(self.tenants, [4, 3, 2, 2][: len(self.tenants)])[0]
        n = n or self._random.choices([1, 2, 4], [8, 1, 1])[0]
        prompt = min(int(self._random.lognormvariate(5.9, 0.7)) + 64, 1400)
        output = min(int(self._random.lognormvariate(5.2, 0.8)) + 8, 600)
        view = monitoring_pb2.RequestView(
            request_id=request_id or f"{hashlib.sha1(str(self._count).encode()).hexdigest()[:12]}",
            tenant=tenant,
            state=WAITING,
            prompt_tokens=prompt,
            max_tokens=self._random.choice([256, 512, 600]),
            priority=self._random.choice([0, 0, 0, 5]),
        )
        view.arrived.FromMicroseconds(int(self.now * 1e6))
        output = min(output, view.max_tokens)
        life = Life(view, n, output, self._random.choice(["support", "extract", "agent"]))
        life.decide(monitoring_pb2.DECISION_KIND_QUEUED, self.now)
        self.live.append(life)
        return life

    def _admit(self) -> None:
        for state in (SWAPPED, WAITING):
            for life in [life for life in self.live if life.view.state == state]:
                if not self._place(life):
                    reason = "needs more blocks than are free"
                    if life.view.reason != reason:
                        life.decide(monitoring_pb2.DECISION_KIND_WAITED, self.now, reason=reason)
                    life.view.reason = reason
                    return

    def _place(self, life: Life) -> bool:
        view = life.view
        if view.state == SWAPPED:
            device, host = self.pools[view.executor]
            taken = device.take(len(life.tables[0]), view.tenant)
            if taken is None or sum(c.references == 0 for c in device.cells) < len(device.cells) // 25:
                device.give_back(taken or [], keep=False)
                return False
            for i, j in zip(taken, life.tables[0], strict=True):
                device.cells[i] = Cell(1, False, view.tenant, host.cells[j].fill, host.cells[j].identity)
            host.give_back(life.tables[0], keep=True)
            self.counters.swapped_in_blocks += len(taken)
            life.tables = [taken]
            life.decide(monitoring_pb2.DECISION_KIND_ADMITTED, self.now, tokens=view.computed_tokens, reason="resumed")
        else:
            name = min(self.pools, key=lambda each: self.pools[each][0].count().referenced_blocks)
            device = self.pools[name][0]
            shared = self._shared_prefix(name, view.tenant, life.system, view.prompt_tokens)
            needed = -(-view.prompt_tokens // BLOCK_SIZE) - len(shared)
            if sum(c.references == 0 for c in device.cells) < needed + len(device.cells) // 50:
                return False
            for i in shared:
                device.cells[i].references += 1
            own = device.take(needed, view.tenant)
            if own is None:
                device.give_back(shared, keep=True)
                return False
            view.executor = name
            life.tables = [shared + own]
            view.cached_tokens = view.computed_tokens = len(shared) * BLOCK_SIZE
            self.counters.prompt_tokens += view.prompt_tokens
            self.counters.cached_prompt_tokens += view.cached_tokens
            life.decide(monitoring_pb2.DECISION_KIND_ADMITTED, self.now, tokens=view.cached_tokens)
        view.state = RUNNING
        view.reason = ""
        return True

    def _shared_prefix(self, executor: str, tenant: str, system: str, prompt: int) -> list[int]:
        """Blocks of a prefix that requests of a tenant begin with, as far as they still hold it."""
        device = self.pools[executor][0]
        blocks = self._prefixes.get((executor, f"{tenant}/{system}"), [])
        held = []
        for k, i in enumerate(blocks):
            if device.cells[i].identity != _identity(tenant, system, k):
                break
            held.append(i)
        return held[: max(0, (prompt - 1) // BLOCK_SIZE)]

    def _prefill(self, life: Life) -> int:
        view = life.view
        if view.computed_tokens >= view.prompt_tokens:
            return 0
        chunk = min(512, view.prompt_tokens - view.computed_tokens)
        device = self.pools[view.executor][0]
        before = view.computed_tokens
        view.computed_tokens += chunk
        for k in range(before // BLOCK_SIZE, -(-view.computed_tokens // BLOCK_SIZE)):
            cell = device.cells[life.tables[0][k]]
            cell.fill = min(BLOCK_SIZE, view.computed_tokens - k * BLOCK_SIZE)
            if cell.fill == BLOCK_SIZE:
                cell.cached = True
                cell.identity = _identity(view.tenant, life.system if k < 12 else view.request_id, k)
        self._prefixes.setdefault((view.executor, f"{view.tenant}/{life.system}"), life.tables[0][:12])
        if before == view.cached_tokens:
            self._prefixes[view.executor, f"{view.tenant}/{life.system}"] = life.tables[0][:12]
        life.decide(monitoring_pb2.DECISION_KIND_PREFILL, self.now - 0.05, tokens=chunk, step=self.counters.steps)
        life.timeline.decisions[-1].until.FromMicroseconds(int((self.now - view.arrived.ToMicroseconds() / 1e6) * 1e6))
        if view.computed_tokens == view.prompt_tokens:
            life.decide(monitoring_pb2.DECISION_KIND_FIRST_TOKEN, self.now, step=self.counters.steps)
            self._fork(life)
        return chunk

    def _fork(self, life: Life) -> None:
        """The samples share the prompt."""
        device = self.pools[life.view.executor][0]
        for _ in range(life.n - 1):
            table = life.tables[0]
            for i in table:
                device.cells[i].references += 1
            life.tables.append(list(table))

    def _decode(self, life: Life) -> int:
        view = life.view
        if view.computed_tokens < view.prompt_tokens or view.state != RUNNING:
            return 0
        per_sequence = min(self._random.randint(3, 6), life.true_output - view.output_tokens // life.n)
        view.output_tokens += per_sequence * len(life.tables)
        device = self.pools[view.executor][0]
        for table, length in zip(life.tables, life.lengths, strict=True):
            last = device.cells[table[-1]]
            if last.references > 1 and length % BLOCK_SIZE:  # copy-on-write
                copy = device.take(1, view.tenant)
                if copy is not None:
                    last.references -= 1
                    device.cells[copy[0]].fill = last.fill
                    table[-1] = copy[0]
                    self.counters.copied_blocks += 1
            while len(table) * BLOCK_SIZE < length:
                new = device.take(1, view.tenant)
                if new is None:
                    self._preempt_for(life)
                    new = device.take(1, view.tenant)
                    if new is None or view.state != RUNNING:
                        return per_sequence
                table.append(new[0])
            for k in range(max(0, length // BLOCK_SIZE - 2), len(table)):
                cell = device.cells[table[k]]
                cell.fill = max(cell.fill, min(BLOCK_SIZE, max(0, length - k * BLOCK_SIZE)))
                if cell.fill == BLOCK_SIZE and not cell.identity:
                    cell.cached, cell.identity = True, _identity(view.tenant, view.request_id, k)
        self.counters.generated_tokens += per_sequence * len(life.tables)
        if view.output_tokens // life.n >= life.true_output:
            self._finish(life)
        return per_sequence * len(life.tables)

    def _preempt_for(self, life: Life) -> None:
        others = [
            each
            for each in self.live
            if each.view.executor == life.view.executor and each.view.state == RUNNING and len(each.tables) == 1
        ]
        if others:
            self.preempt(others[-1], life)

    def preempt(self, victim: Life, beneficiary: Life) -> None:
        view = victim.view
        device, host = self.pools[view.executor]
        taken = host.take(len(victim.tables[0]), view.tenant)
        if taken is None:
            return
        for i, j in zip(victim.tables[0], taken, strict=True):
            host.cells[j] = Cell(1, False, view.tenant, device.cells[i].fill, device.cells[i].identity)
        device.give_back(victim.tables[0], keep=True)
        victim.tables = [taken]
        view.state = SWAPPED
        view.preemptions += 1
        self.counters.preemptions += 1
        self.counters.preemptions_by_swap += 1
        view.reason = "swapped out"
        victim.decide(
            monitoring_pb2.DECISION_KIND_PREEMPTED,
            self.now,
            reason=f"swapped out ({len(taken)} blocks) for {beneficiary.view.request_id}",
        )

    def _finish(self, life: Life) -> None:
        view = life.view
        device = self.pools[view.executor][0]
        for table in life.tables:
            device.give_back(table, keep=self._random.random() < 0.9)
        view.state = ENDED
        view.reason = "stop" if view.output_tokens // life.n < view.max_tokens else "length"
        view.ended.FromMicroseconds(int(self.now * 1e6))
        life.decide(monitoring_pb2.DECISION_KIND_FINISHED, self.now, tokens=view.output_tokens, reason=view.reason)
        life.tables = []
        self.live.remove(life)
        self.ended.append(life)

    # How it looks

    def status(self, viewer: Viewer) -> monitoring_pb2.Status:
        mine = [life for life in self.live if viewer.tenant in (None, life.view.tenant)]
        by_state = {state: sum(life.view.state == state for life in mine) for state in (RUNNING, WAITING, SWAPPED)}
        status = monitoring_pb2.Status(
            ready=self.ready,
            model=inference_pb2.Model(
                name="qwen3-0.6b",
                max_model_len=MAX_MODEL_LEN,
                vocab_size=151_936,
                block_size=BLOCK_SIZE,
                num_blocks=sum(len(device.cells) for device, _ in self.pools.values()),
            ),
            running_requests=by_state[RUNNING],
            waiting_requests=by_state[WAITING],
            swapped_requests=by_state[SWAPPED],
            batch_sequences=self._batch[0],
            batch_prefill_tokens=self._batch[1],
            batch_decode_tokens=self._batch[2],
            counters=self.counters,
            bytes_per_block=BYTES_PER_BLOCK,
            state_available=self.state_available,
            time=_timestamp(self.now),
        )
        for name, (device, host) in self.pools.items():
            status.executors.add(
                executor=name,
                device=device.count(),
                host=host.count(),
                running_requests=sum(life.view.executor == name and life.view.state == RUNNING for life in mine),
                swapped_requests=sum(life.view.executor == name and life.view.state == SWAPPED for life in mine),
                speeds=memory_pb2.Speeds(
                    prefill_tokens_per_s=9400, swap_out_blocks_per_s=21000, swap_in_blocks_per_s=19500
                ),
            )
        for tenant in self.tenants if viewer.tenant is None else [viewer.tenant]:
            cells = [cell for device, _ in self.pools.values() for cell in device.cells if cell.owner == tenant]
            status.tenants.add(
                memory=memory_pb2.TenantMemory(
                    owner=tenant,
                    charged_blocks=sum(cell.references > 0 for cell in cells),
                    cached_blocks=sum(cell.references == 0 for cell in cells),
                    max_blocks=2400 if tenant == self.tenants[-1] else 0,
                    weight=1.0,
                ),
                running_requests=sum(life.view.tenant == tenant and life.view.state == RUNNING for life in self.live),
                waiting_requests=sum(life.view.tenant == tenant and life.view.state == WAITING for life in self.live),
            )
        return status

    def blocks(self, name: str, viewer: Viewer) -> list[memory_pb2.Block]:
        return [
            memory_pb2.Block(
                block_id=i,
                tier=pool.tier,
                reference_count=cell.references,
                cached=cell.cached,
                owner=cell.owner,
                fill=cell.fill,
                identity_prefix=cell.identity,
            )
            if viewer.tenant in (None, cell.owner)
            else memory_pb2.Block(block_id=i, tier=pool.tier)
            for pool in self.pools[name]
            for i, cell in enumerate(pool.cells)
        ]

    # Monitoring

    async def watch_status(
        self, request: monitoring_pb2.WatchStatusRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchStatusResponse]:
        yield monitoring_pb2.WatchStatusResponse(history=self.history, status=self.status(viewer))
        while True:
            await asyncio.sleep(request.interval.ToMilliseconds() / 1000)
            yield monitoring_pb2.WatchStatusResponse(status=self.status(viewer))

    async def watch_blocks(
        self, request: monitoring_pb2.WatchBlocksRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchBlocksResponse]:
        seen: dict[str, list[memory_pb2.Block]] = {}
        while True:
            for name, (device, host) in self.pools.items():
                now = self.blocks(name, viewer)
                changed = now
                if name in seen:
                    changed = [new for new, old in zip(now, seen[name], strict=True) if new != old]
                if changed:
                    yield monitoring_pb2.WatchBlocksResponse(
                        executor=name,
                        snapshot=name not in seen,
                        num_device_blocks=len(device.cells),
                        num_host_blocks=len(host.cells),
                        blocks=changed,
                    )
                seen[name] = now
            await asyncio.sleep(request.interval.ToMilliseconds() / 1000)

    async def list_requests(
        self, request: monitoring_pb2.ListRequestsRequest, viewer: Viewer
    ) -> monitoring_pb2.ListRequestsResponse:
        ended = list(self.ended)[-request.num_ended :] if request.num_ended else []
        lives = [life for life in [*ended, *self.live] if viewer.tenant in (None, life.view.tenant)]
        return monitoring_pb2.ListRequestsResponse(
            requests=[self._view(life, request.include_blocks) for life in lives]
        )

    def _view(self, life: Life, include_blocks: bool) -> monitoring_pb2.RequestView:
        view = monitoring_pb2.RequestView()
        view.CopyFrom(life.view)
        for table, length in zip(life.tables, life.lengths, strict=True):
            ids = struct.pack(f"<{len(table)}i", *table) if include_blocks else b""
            view.sequences.add(num_tokens=length, block_ids=ids)
        return view

    async def explain(
        self, request: monitoring_pb2.ExplainRequestRequest, viewer: Viewer
    ) -> monitoring_pb2.ExplainRequestResponse:
        for life in [*self.live, *self.ended]:
            if life.view.request_id == request.request_id and viewer.tenant in (None, life.view.tenant):
                life.timeline.request.CopyFrom(self._view(life, include_blocks=False))
                return monitoring_pb2.ExplainRequestResponse(timeline=life.timeline)
        raise RpcError(grpc.StatusCode.NOT_FOUND, "there is no such request", "NO_SUCH_REQUEST")

    async def prefix_tree(
        self, request: monitoring_pb2.GetPrefixTreeRequest, viewer: Viewer
    ) -> monitoring_pb2.GetPrefixTreeResponse:
        tree = monitoring_pb2.GetPrefixTreeResponse()
        texts = {
            "support": "You are a patient support agent for a railway company. Answer in the customer's language …",
            "extract": "Extract every date, amount and party from the following contract as JSON …",
            "agent": "You can call these tools: search(query), open(url), run(code). Think step by step …",
        }
        for k, tenant in enumerate(self.tenants):
            if viewer.tenant not in (None, tenant):
                continue
            for (executor, name), blocks in self._prefixes.items():
                owner, _, system = name.partition("/")
                if owner != tenant:
                    continue
                device = self.pools[executor][0]
                held = [i for j, i in enumerate(blocks) if device.cells[i].identity == _identity(tenant, system, j)]
                if not held:
                    continue
                root = _identity(tenant, system, len(held) - 1)
                tree.nodes.add(
                    identity_prefix=root,
                    executor=executor,
                    num_blocks=len(held),
                    referenced_blocks=sum(device.cells[i].references > 0 for i in held),
                    owner=tenant,
                    scope="shared" if system == "agent" else "tenant",
                    hits=37 * (k + 1) + len(held),
                    text=texts[system],
                )
                for life in self.live:
                    if life.view.tenant == tenant and life.view.executor == executor and life.system == system:
                        own = len(life.tables[0]) - len(held) if life.tables else 0
                        if own > 0:
                            tree.nodes.add(
                                identity_prefix=_identity(tenant, life.view.request_id, 99),
                                parent_identity_prefix=root,
                                executor=executor,
                                num_blocks=own,
                                referenced_blocks=own if life.view.state == RUNNING else 0,
                                host_blocks=own if life.view.state == SWAPPED else 0,
                                owner=tenant,
                                scope="tenant",
                                hits=life.n - 1,
                                text=f"Customer {life.view.request_id[:4]}: when does the next train leave …",
                            )
            for scope, share in (("tenant", 0.42), ("shared", 0.81), ("app", 0.13)):
                queried = 12_000 * (k + 1)
                tree.scopes.add(
                    owner=tenant,
                    scope=scope,
                    queried_tokens=queried,
                    hit_tokens=int(queried * share / (1 + 0.2 * k)),
                    cached_blocks=40 * (k + 1),
                )
        return tree


def _identity(*parts: object) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()[:8]


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(int(seconds * 1e6))
    return stamp
