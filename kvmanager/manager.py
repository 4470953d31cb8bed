"""The KV manager: takes requests, says what each executor computes, and turns results into tokens for the gateways."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import count

from kvmanager.accounts import Quota
from kvmanager.beam_search import BeamSearch
from kvmanager.capacity import Capacity
from kvmanager.content import Identify, ScopeMap, block_identity
from kvmanager.cost_model import Preemption
from kvmanager.counters import Counters
from kvmanager.deadlines import Deadlines
from kvmanager.endings import end_request, shorten
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, OutOfOrder, RequestError
from kvmanager.events import Event, EventKind, EventSink
from kvmanager.integrity import check_places, check_promises, check_queue
from kvmanager.kv_events import AllBlocksCleared, KVEventLog
from kvmanager.limits import Limits
from kvmanager.pins import LostPin, Pin, Pins
from kvmanager.policies import make_policy
from kvmanager.queue_bounds import QueueBounds
from kvmanager.replica import Replica
from kvmanager.replica_factory import ReplicaFactory
from kvmanager.request import Request, RequestState, Sequence
from kvmanager.request_checks import check_spec
from kvmanager.resumption import resume
from kvmanager.rooms import can_relieve, rooms_for, settle_quotas
from kvmanager.router import Router
from kvmanager.sequences import SequenceFactory
from kvmanager.spec import RequestSpec
from kvmanager.step import Outputs, Speeds, StepBatch, StepResult, StoredBlock

MAX_LOSSES = 5
"""So many executors may be lost under a request without a token in between before it is given up, so that a request
that breaks its executor does not do so for ever."""


class KVManager:
    """All memory state of any number of executors of one model, and the requests that share it.

    Drive it as: `submit`/`abort`/`expire` at any time; for each executor, `schedule` while it returns batches, send
    each; `apply` each result in order. Times are seconds on one monotonic clock of the caller's. Not thread-safe.

    Args:
        policy: one of `kvmanager.policies.POLICIES`.
        preemption: what becomes of a preempted request's blocks.
        quotas: what tenants may have, by owner.
        identify: how blocks are named; tests make collisions with it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        policy: str = "fcfs",
        preemption: Preemption = Preemption.AUTO,
        quotas: Mapping[str, Quota] | None = None,
        prefix_caching: bool = True,
        on_event: EventSink = lambda event: None,
        identify: Identify = block_identity,
    ) -> None:
        self.counters = Counters()
        self.kv_events = KVEventLog()
        self.capacity: Capacity | None = None
        self.replicas: dict[str, Replica] = {}
        self.pins = Pins()
        self.quotas: Mapping[str, Quota] = quotas or {}
        self.evicted_before = 0
        self.limits = limits
        self._policy = make_policy(policy, self.quotas)
        self._emit = on_event
        self._requests: dict[Hashable, Request] = {}
        self._homes: dict[Hashable, Replica] = {}
        self._homeless: dict[Hashable, Request] = {}
        self._router = Router(prefix_caching)
        self._deadlines = Deadlines()
        self._queue_bounds = QueueBounds(limits)
        self._sequences = SequenceFactory()
        self._arrivals = count(1)
        self._factory = ReplicaFactory(
            limits,
            self._policy,
            preemption,
            prefix_caching,
            identify,
            self._queue_bounds,
            self._sequences,
            self.counters,
            self.kv_events,
            on_event,
            self.pins.computed,
        )

    # Executors come and go

    def attach_executor(
        self,
        name: str,
        capacity: Capacity,
        now: float,
        speeds: Speeds | None = None,
        stored: Iterable[StoredBlock] = (),
    ) -> Outputs:
        """Starts on an executor with nothing in memory but what it says to have there; its first step is 1.

        Args:
            stored: what its blocks hold, in the order in which it was stored. What is sound of it can be given out.

        Returns:
            Ends of sequences and requests that can't fit any more, if this executor is smaller than the one they were
            accepted for, and of requests that may be what breaks executors.

        Raises:
            ValueError: its blocks are not of the others' size.
        """
        outputs = self.detach_executor(name, now)
        if self.capacity is not None and (block_size := self.capacity.block_size) != capacity.block_size:
            if self.replicas:
                raise ValueError(f"{name} has blocks of {capacity.block_size} tokens, the others of {block_size}")
            for request in self._requests.values():
                request.cut(capacity.block_size)
        self.replicas[name] = self._factory.make(name, capacity, speeds, self.quotas, stored)
        self.capacity = max((each.memory.capacity for each in self.replicas.values()), key=lambda each: each.num_blocks)
        self._compute_lost_pins(now)
        homeless = list(self._homeless.values())
        waiting = [each for replica in self.replicas.values() for each in replica.scheduler.hand_over_waiting()]
        for request in sorted(homeless + waiting, key=lambda each: each.arrival):
            self._place(request, outputs, now)
        return self._settle(outputs, now)

    def detach_executor(self, name: str, now: float) -> Outputs:
        """The executor is gone, and with it every key and value. Its requests go on elsewhere, or wait."""
        outputs = Outputs()
        replica = self.replicas.pop(name, None)
        if replica is None:
            return outputs
        self.evicted_before += replica.memory.device.cache.num_evicted
        self.kv_events.append(AllBlocksCleared(name))
        requests = replica.scheduler.hand_over_all(now)
        self.pins.lost(replica)
        self._router.lost(replica)
        self._compute_lost_pins(now)
        for request in sorted(requests, key=lambda each: each.arrival):
            if not self.replicas and request.spec.pin is None:
                self._homes.pop(request.spec.handle, None)
                self._homeless[request.spec.handle] = request
            elif request.spec.handle in self._requests:
                self._place(request, outputs, now)
        return self._settle(outputs, now)

    def drain_executor(self, name: str, now: float) -> Outputs:
        """Gives an executor nothing new; what waits for it goes elsewhere. Detach it when `replicas[name].idle`."""
        outputs = Outputs()
        replica = self.replicas[name]
        replica.draining = True
        self._send_elsewhere(replica, outputs, now)
        return self._settle(outputs, now)

    def _send_elsewhere(self, replica: Replica, outputs: Outputs, now: float) -> None:
        """A draining replica keeps what has begun if nobody else could go on with it."""
        for request in replica.scheduler.hand_over_waiting(begun=bool(self._open_replicas())):
            self._place(request, outputs, now)

    def _open_replicas(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if not replica.draining]

    # Tenants may have something else

    def set_quotas(self, quotas: Mapping[str, Quota], now: float) -> Outputs:
        """Replaces what tenants may have, all of it.

        For requests that have not begun it holds at once. Those that have can go on to their end where they are: on
        their executor, limits that shrink and reservations that grow take hold once all that goes on there, and all
        that is pinned, leaves room for them.

        Returns:
            Ends of requests that waited, and can't fit any more.
        """
        outputs = Outputs()
        self.quotas = quotas
        self._policy.reweigh({owner: quota.weight for owner, quota in quotas.items()})
        unbegun = [each for each in self._homeless.values() if each.state is RequestState.WAITING]
        for replica in self.replicas.values():
            replica.memory.pool.accounts.change(quotas)
            unbegun += replica.scheduler.hand_over_waiting(begun=False)
            replica.scheduler.look_again()
        for request in sorted(unbegun, key=lambda each: each.arrival):
            self._place(request, outputs, now)
        return self._settle(outputs, now)

    def _settle_quotas(self) -> None:
        """Lets changed quotas hold where nothing is in their way any more."""
        for replica in self.replicas.values():
            if replica.memory.pool.accounts.changing:
                begun = [each for each in self._requests_on(replica) if each.state is not RequestState.WAITING]
                settle_quotas(replica, begun)

    # Requests come and go

    def submit(self, spec: RequestSpec, now: float) -> Outputs:
        """Puts a request into the queue.

        Returns:
            Ends of resumed sequences that have all their tokens, and of the request if all have.

        Raises:
            InvalidRequest: it can never be served.
            QueueFull: too many wait already.
            PinRefused: the pin would leave others too little.
        """
        if self.capacity is None:
            raise RuntimeError("no executor has been attached yet")
        if spec.pin is not None:
            spec = replace(spec, max_tokens=1, n=1, best_of=0, beam=None)  # the token that comes with the prompt
        if spec.handle in self._requests:
            raise InvalidRequest("request_id", "a request with this handle is running")
        if spec.pin is not None and (known := self.pins.get(spec.pin.pin_id)) is not None:
            if not spec.resubmitted or known.spec.tenant != spec.tenant:
                raise InvalidRequest("pin_id", "a pin with this id exists")
            self._let_go(known, now)  # it was computed, but its gateway did not hear of it
        check_spec(spec, self.capacity, self.limits.max_sequences)
        if not (spec.resubmitted or spec.resumed):
            self._queue_bounds.check(spec, now)
        outputs = Outputs()
        self._accept(spec, outputs, now)
        if not spec.resumed:
            self._queue_bounds.joined(spec, now)
        return outputs

    def _accept(self, spec: RequestSpec, outputs: Outputs, now: float) -> None:
        assert self.capacity is not None
        scopes = ScopeMap(spec.spans, self.capacity.block_size)
        request = Request(spec, next(self._arrivals), now, scopes, 0, state_since=now)
        rooms = rooms_for(request, self._open_replicas())
        request.max_length = max(rooms.values()) if rooms else self.capacity.resolve_max_length(spec)
        if spec.beam is not None:
            output = request.max_length - len(spec.prompt_token_ids)
            request.beams = BeamSearch(spec.beam, output, spec.stop_token_ids)
        if spec.resumed:
            resume(request, self._sequences, outputs)
        else:
            request.forked = spec.num_sequences == 1 and spec.beam is None
            self._sequences.add(request, 0, array("i", spec.prompt_token_ids))
        able = [replica for replica, room in rooms.items() if room >= request.max_length]
        home = self._router.choose(request, able) if able and request.unfinished() else None
        if spec.pin is not None:
            self.pins.order(request.spec, home, self._requests_on(home))
        self._requests[spec.handle] = request
        self._policy.arrived(spec.tenant)
        if spec.deadline is not None:
            self._deadlines.add(spec.deadline, spec.handle, self._requests)
        num_tokens = sum(sequence.num_output for sequence in request.sequences)
        self._emit(Event(EventKind.QUEUED, now, spec.handle, value=num_tokens))
        if home is not None:
            self._enqueue(request, home)
        elif request.unfinished():
            self._homeless[spec.handle] = request
        else:
            self._end_homeless(request, outputs, now)
            self._settle(outputs, now)

    def _place(self, request: Request, outputs: Outputs, now: float) -> None:
        """Finds a replica for a request that has lost its own, or never had one."""
        handle = request.spec.handle
        self._homes.pop(handle, None)
        self._homeless.pop(handle, None)
        self._router.left(request)
        try:
            if request.num_losses >= MAX_LOSSES:
                raise ExecutorFailed(f"{request.num_losses} executors in a row failed while this request ran")
            self.pins.unplace(request.spec)
            rooms = rooms_for(request, self._open_replicas())
            if not rooms:
                self._homeless[handle] = request
                return
            shorten(request, max(rooms.values()), outputs)
            if not request.unfinished():
                self._end_homeless(request, outputs, now)
                return
            home = self._router.choose(request, [each for each, room in rooms.items() if room >= request.max_length])
            if request.spec.pin is not None:
                self.pins.order(request.spec, home, self._requests_on(home))
        except RequestError as error:
            self._end_homeless(request, outputs, now, error)
            return
        self._enqueue(request, home)

    def _enqueue(self, request: Request, home: Replica) -> None:
        self._homes[request.spec.handle] = home
        self._router.placed(request, home)
        home.scheduler.enqueue(request)

    def _end_homeless(
        self, request: Request, outputs: Outputs, now: float, error: RequestError | None = None, detail: str = ""
    ) -> None:
        self._homeless.pop(request.spec.handle, None)
        end_request(request, outputs, now, self.counters, self._emit, error, detail)

    def _requests_on(self, replica: Replica | None) -> list[Request]:
        return [self._requests[handle] for handle, home in self._homes.items() if home is replica]

    def abort(self, handle: Hashable, now: float, sample_index: int | None = None) -> Outputs:
        """Ends a request whose caller has left, or one of its sequences whose text is complete.

        A whole request ends without a word; after its last sequence there is a `RequestEnd`. Unknown handles are
        ignored: the request may have ended by itself meanwhile.
        """
        outputs = Outputs()
        request = self._requests.get(handle)
        if request is None:
            return outputs
        if sample_index is None:
            unheard = Outputs()
            self._end(request, unheard, now, detail="abort")
            self._settle(unheard, now)
        elif request.streamed and sample_index < len(request.sequences):
            sequence = request.sequences[sample_index]
            if not sequence.finished:
                self._finish(sequence, outputs, now)
        return self._settle(outputs, now)

    def _finish(self, sequence: Sequence, outputs: Outputs, now: float) -> None:
        request = sequence.request
        home = self._homes.get(request.spec.handle)
        if home is not None:
            home.finish(sequence, None, outputs, now)
            return
        sequence.finished = True
        if request.forked and not request.unfinished():
            self._end_homeless(request, outputs, now)

    def expire(self, now: float) -> Outputs:
        """Ends every request whose deadline has come, and every pin whose time is over."""
        outputs = Outputs()
        for pin in self.pins.due(now):
            self._let_go(pin, now)
        for handle in dict.fromkeys(self._deadlines.due(now, self._requests)):
            request = self._requests[handle]
            if request.spec.deadline is not None and request.spec.deadline <= now:  # not an earlier one's of this name
                self._end(request, outputs, now, error=DeadlineExceeded("the request's time is over"))
        return self._settle(outputs, now)

    def next_deadline(self) -> float | None:
        """The earliest time at which `expire` may have something to do."""
        times = [time for time in (self._deadlines.next(), self.pins.next_expiry()) if time is not None]
        return min(times, default=None)

    def _end(
        self, request: Request, outputs: Outputs, now: float, error: RequestError | None = None, detail: str = ""
    ) -> None:
        home = self._homes.get(request.spec.handle)
        if home is not None:
            home.end(request, outputs, now, error=error, detail=detail)
        else:
            self._end_homeless(request, outputs, now, error, detail)

    def _settle(self, outputs: Outputs, now: float) -> Outputs:
        """Forgets the requests that have ended, and keeps the pins' own from the gateways."""
        for end in outputs.ends:
            request = self._requests.pop(end.handle, None)
            if request is None:
                continue  # settled already
            self._homes.pop(end.handle, None)
            self._homeless.pop(end.handle, None)
            self._router.left(request)
            self._policy.left(request.spec.tenant)
            self._queue_bounds.left(end.handle, now)
            order = request.spec.pin
            if order is not None and (pin := self.pins.get(order.pin_id)) and pin.blocks is None:
                self.pins.remove(pin)  # it could not be computed
        self._settle_quotas()
        outputs.ends = [end for end in outputs.ends if not isinstance(end.handle, LostPin)]
        outputs.progress = [each for each in outputs.progress if not isinstance(each.handle, LostPin)]
        return outputs

    # Steps

    def schedule(self, executor: str, now: float) -> StepBatch | None:
        """Returns the executor's next step to send, or None when there is nothing to do or enough is under way."""
        replica = self.replicas.get(executor)
        if replica is None:
            return None
        if len(self.replicas) > 1:
            self._relieve_others(replica)
        return replica.schedule(now)

    def _relieve_others(self, replica: Replica) -> None:
        """A replica with nobody in line takes the first from a line that does not move."""
        scheduler = replica.scheduler
        if replica.draining or len(scheduler.waiting) or scheduler.swapped:
            return
        for other in self.replicas.values():
            head = other.scheduler.waiting.head()
            if other is replica or head is None or not head.waiting_reason or head.spec.pin is not None:
                continue
            if can_relieve(replica, head):
                if other.scheduler.hand_over(head):
                    self._router.left(head)
                    self._enqueue(head, replica)
                return

    def apply(self, executor: str, result: StepResult, now: float) -> Outputs:
        """Takes a step's tokens in.

        Raises:
            OutOfOrder: it is not the result that is due; nothing has changed.
        """
        replica = self.replicas.get(executor)
        if replica is None:
            raise OutOfOrder(f"result of step {result.step} from an executor that is not attached")
        outputs = replica.apply(result, now)
        if replica.draining:
            self._send_elsewhere(replica, outputs, now)
        if outputs.ends or outputs.progress:
            self._settle(outputs, now)
        return outputs

    # Pins

    def unpin(self, tenant: str, pin_id: str, now: float) -> bool:
        """Lets go of a tenant's pin. Returns False if it has no such pin."""
        pin = self.pins.get(pin_id)
        if pin is None or pin.spec.tenant != tenant:
            return False
        self._let_go(pin, now)
        return True

    def list_pins(self, tenant: str) -> list[Pin]:
        """A tenant's pins that have been computed at least once."""
        return [pin for pin in self.pins if pin.spec.tenant == tenant and pin.expires is not None]

    def restore_pin(self, spec: RequestSpec, expires: float, now: float) -> None:
        """Takes on a pin of a KV manager that is gone. Its prefix is computed as soon as it fits an executor."""
        assert spec.pin is not None
        if spec.pin.pin_id not in self.pins:
            self.pins.add(replace(spec, max_tokens=1, n=1)).expires = expires
            self._compute_lost_pins(now)

    def _let_go(self, pin: Pin, now: float) -> None:
        computing = self._requests.get(LostPin(pin.pin_id))
        if computing is not None:
            unheard = Outputs()
            self._end(computing, unheard, now, detail="abort")
            self._settle(unheard, now)
        if pin.pin_id in self.pins:
            self.pins.remove(pin)
            self._settle_quotas()

    def _compute_lost_pins(self, now: float) -> None:
        """Pins whose executor is gone are computed again, on another or on the same one when it is back."""
        if not self._open_replicas():
            return
        for spec in self.pins.to_compute():
            if spec.handle not in self._requests:
                try:
                    self._accept(spec, Outputs(), now)
                except RequestError:
                    continue  # it fits nowhere, for now

    # Looking in

    @property
    def idle(self) -> bool:
        """No request is here and no step is under way."""
        return not self._requests and not self.under_way

    @property
    def under_way(self) -> bool:
        """A step is, on some executor."""
        return any(replica.under_way for replica in self.replicas.values())

    @property
    def requests(self) -> Mapping[Hashable, Request]:
        """Those that have not ended, or end at this moment."""
        return self._requests

    @property
    def homeless(self) -> Mapping[Hashable, Request]:
        """Those of them that wait for an executor to come."""
        return self._homeless

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that were preempted by recomputation among them."""
        return len(self._homeless) + sum(len(replica.scheduler.waiting) for replica in self.replicas.values())

    def check_integrity(self) -> None:
        """Asserts every invariant of queues, tables, pools and prefix caches. Linear in blocks."""
        self._router.check_integrity({self._requests[handle]: home for handle, home in self._homes.items()})
        for replica in self.replicas.values():
            replica.check_integrity()
        check_places(self._requests, self._homes, self._homeless, self.replicas)
        check_promises(self.pins, self.replicas)
        check_queue(self._queue_bounds, self._requests)
