"""Bugs in delivery, the pure part: leases, acks, retries, lanes, timers, keys, dedup, producers."""

from __future__ import annotations

from tests.planted.bug import Bug

QUEUE = "tests/unit/delivery/test_queue.py"
STATE = "tests/unit/delivery/test_state.py"
LEASES = "tests/unit/delivery/test_leases.py"
LANES = "tests/unit/delivery/test_lanes.py"
STARVATION = "tests/unit/delivery/test_starvation.py"
LEASE_TIME = "tests/unit/delivery/test_lease_time.py"
TIMERS = "tests/unit/delivery/test_timers.py"
DEDUP = "tests/unit/delivery/test_dedup.py"
PRODUCERS = "tests/unit/delivery/test_producers.py"
LIVES = "tests/simulation/test_delivery.py::test_random_lives_agree_with_the_model"

DELIVERY_BUGS = [
    Bug(
        "the nonce check is lost: any lease may settle what is in flight",
        "delivery/queue.py",
        """\
                held -= lease.overdue(at_ns)
        if offsets is None:""",
        """\
                held -= lease.overdue(at_ns)
        elif offsets is not None:
            held = offsets.within(self.state.outstanding)
        if offsets is None:""",
        QUEUE,
    ),
    Bug(
        "the deadline of a lease is not checked when a message is settled",
        "delivery/queue.py",
        """\
            if lease.deadline_ns <= at_ns or lease.extended:
                held -= lease.overdue(at_ns)""",
        """\
            if lease.deadline_ns <= at_ns or lease.extended:
                pass""",
        QUEUE,
    ),
    Bug(
        "ledger time starts again at zero after a restart",
        "delivery/queue.py",
        "self._ahead_ns = state.time_ns - now_ns",
        "self._ahead_ns = -now_ns",
        QUEUE,
    ),
    Bug(
        "the delivery count is forgotten: every redelivery is the second",
        "delivery/picking.py",
        "count = histories[offset].deliveries + 1",
        "count = 2",
        QUEUE,
    ),
    Bug(
        "one retry too many",
        "delivery/queue.py",
        """\
dead = [part for part in parts if part.delivery_count > retries]
        again = [part for part in parts if part.delivery_count <= retries]""",
        """\
dead = [part for part in parts if part.delivery_count > retries + 1]
        again = [part for part in parts if part.delivery_count <= retries + 1]""",
        QUEUE,
    ),
    Bug(
        "an ack does not reach the floor",
        "delivery/state.py",
        """\
            acked.advance(floor)
""",
        """\
            if not outstanding:
                acked.advance(floor)
""",
        QUEUE,
    ),
    Bug(
        "an ack of an unknown lease is dropped",
        "delivery/state.py",
        """\
        retried = lease is None
""",
        """\
        retried = lease is None
        if lease is None:
            return
""",
        STATE,
    ),
    Bug(
        "the floor passes what is not acked",
        "delivery/state.py",
        """\
        if outstanding and (first := outstanding.min()) < floor:
            floor = first
""",
        "",
        QUEUE,
    ),
    Bug(
        "a lease that is young never runs out",
        "delivery/leases.py",
        "        if now_ns >= self._young_deadline_ns:\n            self._grow_old()\n",
        "",
        "tests/unit/delivery/test_leases.py",
    ),
    Bug(
        "an overdue lease is forgotten when its expiry was not written",
        "delivery/leases.py",
        """\
            found.append(lease)
""",
        """\
            found.append(lease)
            gone.append(nonce)
""",
        LEASES,
    ),
    Bug(
        "extending one message of a lease extends all",
        "delivery/leases.py",
        """\
            lease.extended = (lease.extended or {}) | dict.fromkeys(offsets, deadline_ns)
""",
        """\
            lease.deadline_ns = deadline_ns
""",
        LEASES,
    ),
    Bug(
        "a nacked message is due at once",
        "delivery/state.py",
        "due_ns=event.at_ns + event.delay_ns,",
        "due_ns=event.at_ns,",
        QUEUE,
    ),
    Bug(
        "timers ring a tick too early",
        "delivery/timers.py",
        """\
            ripe = entries[0] <= now
""",
        """\
            ripe = entries[0] <= now + self.tick_size
""",
        LEASES,
    ),
    Bug(
        "a cascade loses the slot that time enters",
        "delivery/timers.py",
        """\
        for entries in entered:
            self._place(entries)
""",
        """\
        for entries in entered[1:]:
            self._place(entries)
""",
        TIMERS,
    ),
    Bug(
        "read-ahead hands out what was handed out before",
        "delivery/state.py",
        """\
        done = self.acked.among(offsets)
        if done.count:
            offsets -= done
""",
        "",
        STATE,
    ),
    Bug(
        "a later message of a key overtakes one that stayed behind",
        "delivery/keys.py",
        """\
            if waiting[0] != offset:
                continue
""",
        """\
            if key != NO_KEY:
                waiting = [*waiting][::-1]
""",
        QUEUE,
    ),
    Bug(
        "a key that is released is not offered again",
        "delivery/keys.py",
        """\
            for ahead in self.ahead:
                ahead.offer(key)
""",
        "",
        QUEUE,
    ),
    Bug(
        "a key is free while one of its messages is in flight",
        "delivery/keys.py",
        "            if key is None or offset == last or key in locked:\n",
        "            if key is None or offset == last:\n",
        QUEUE,
    ),
    Bug(
        "a key is released when its message is nacked",
        "delivery/state.py",
        """\
                if offsets.count:
                    self.retries.add(offsets, history)
""",
        """\
                if offsets.count:
                    self.retries.add(offsets, history)
                    self.keys.release(offsets)
""",
        QUEUE,
    ),
    Bug(
        "messages that a power cut took are still remembered",
        "delivery/state.py",
        """\
        self.lanes.back_to(event.end)
        self.acked.forget_from(event.end)
        self.passed = min(self.passed, event.end)
""",
        "",
        STATE,
    ),
    Bug(
        "a snapshot forgets what is waiting",
        "delivery/state.py",
        """\
        state.outstanding |= snapshot.waiting
""",
        "",
        LIVES,
    ),
    Bug(
        "a snapshot forgets which of a lease is done",
        "delivery/state.py",
        "            leases=list(self.leases),",
        """\
            leases=[
                Lease(each.nonce, each.deadline_ns, each.consumer, each.wall_us, each.parts)
                for each in self.leases
            ],""",
        STATE,
    ),
    Bug(
        "deciding takes messages from their lane before that is stored",
        "delivery/queue.py",
        """\
                return Decision((leased,), (), {}, leased)
""",
        """\
                lane.take(found, passed)
                return Decision((leased,), (), {}, leased)
""",
        QUEUE,
    ),
    Bug(
        "an idle lane saves up its turns",
        "delivery/lanes.py",
        """\
                    left[priority] = min(left[priority], self.weights[priority])
""",
        "",
        LANES,
    ),
    Bug(
        "expired messages are delivered",
        "delivery/queue.py",
        "            if found is not None and not source.expired(found[1], wall_us).count:",
        "            if found is not None:",
        QUEUE,
    ),
    Bug(
        "the limit on what is in flight counts leases",
        "delivery/queue.py",
        "policy.in_flight_max - state.in_flight)",
        "policy.in_flight_max - len(state.leases))",
        QUEUE,
    ),
    Bug(
        "dedup forgets too early",
        "delivery/dedup.py",
        "since_ns + (window_ns or self.window_ns) <= now_ns",
        "since_ns + (window_ns or self.window_ns) // 2 <= now_ns",
        DEDUP,
    ),
    Bug(
        "the youngest deduplication id makes room",
        "delivery/dedup.py",
        "            del entries[next(iter(entries))]",
        "            entries.popitem()",
        DEDUP,
    ),
    Bug(
        "a duplicate batch is accepted",
        "delivery/producers.py",
        """\
            if base_sequence + count <= expected:
                return Duplicate(producer.offset_of(base_sequence))
""",
        """\
            if base_sequence < expected:
                expected = base_sequence
""",
        PRODUCERS,
    ),
    Bug(
        "a zombie is not fenced",
        "delivery/producers.py",
        "if producer is not None and epoch < producer.epoch:",
        "if producer is not None and epoch < producer.epoch - 1000:",
        PRODUCERS,
    ),
    Bug(
        "retries are not counted over a restart",
        "delivery/state.py",
        """\
            state.retries.add(offsets, history)
        state.retries.take""",
        """\
            state.retries.add(offsets, msgspec.structs.replace(history, deliveries=1))
        state.retries.take""",
        STATE,
    ),
    Bug(
        "lane weights are ignored",
        "delivery/lanes.py",
        "        self._left[:] = self.weights\n",
        "        self._left[:] = [20] * LANES\n",
        LANES,
    ),
    Bug(
        "a message that has waited for too long waits for its turn",
        "delivery/queue.py",
        "                count -= pick.draw_one(each.priority, retry=each.is_retry)\n",
        "                pass\n",
        STARVATION,
    ),
    Bug(
        "the timer of a lane does not start again",
        "delivery/starvation.py",
        """\
                self._told.append(longest)
                waited_ns = 0
""",
        """\
                self._told.append(longest)
""",
        STARVATION,
    ),
    Bug(
        "the timer of a lane starts again for a decision that was not carried out",
        "delivery/starvation.py",
        "            if not is_held and offset not in state.acked:\n",
        "            if not is_held and offset in state.acked:\n",
        STARVATION,
    ),
    Bug(
        "the time that a broker was up is forgotten when it is killed",
        "delivery/queue.py",
        "        return Decision((TimePassed(at_ns, jumped_us),))\n",
        "        return Decision((TimePassed(state.time_ns, jumped_us),))\n",
        LEASE_TIME,
    ),
    Bug(
        "the time is noted while nothing depends on it",
        "delivery/queue.py",
        """\
        if deadline_ns is None:
            return None
        return min(deadline_ns,""",
        """\
        if deadline_ns is None:
            deadline_ns = NEVER
        return min(deadline_ns,""",
        LEASE_TIME,
    ),
    Bug(
        "a lease is immortal while the broker is killed soon after each start",
        "delivery/queue.py",
        "            if lease.until_us and lease.until_us + GRACE_US <= now_us\n",
        "            if lease.until_us and lease.until_us + 100 * GRACE_US <= now_us\n",
        LEASE_TIME,
    ),
    Bug(
        "a wall clock that was set steals leases at the next start",
        "delivery/queue.py",
        "        now_us = wall_us - state.jumped_us\n",
        "        now_us = wall_us\n",
        LEASE_TIME,
    ),
    Bug(
        "a lease that is extended ends as it would have by the wall clock",
        "delivery/leases.py",
        "            lease.until_us = max(lease.until_us, until_us)\n",
        "",
        LEASE_TIME,
    ),
    Bug(
        "what a lease lost comes back at once, whatever is set",
        "delivery/queue.py",
        "delay_ns = self._backoff_ns(delivery_count) if backs_off else 0",
        "delay_ns = 0",
        QUEUE,
    ),
    Bug(
        "what a lease lost always waits",
        "delivery/queue.py",
        "delay_ns = self._backoff_ns(delivery_count) if backs_off else 0",
        "delay_ns = self._backoff_ns(delivery_count)",
        QUEUE,
    ),
    Bug(
        "an acked message above the floor comes again after a restore",
        "delivery/state.py",
        """\
        state.acked = AckedSet(snapshot.floor, snapshot.acked)
""",
        """\
        state.acked = AckedSet(snapshot.floor)
""",
        STATE,
    ),
    Bug(
        "a message that is rejected leaves no dead letter",
        "delivery/queue.py",
        '        return Decision((Rejected(nonce, held, "rejected"),), tuple(letters), refused)',
        '        return Decision((Rejected(nonce, held, "rejected"),), (), refused)',
        QUEUE,
    ),
    Bug(
        "a lease that is packed forgets whose it is",
        "delivery/leases.py",
        "Offsets(offset, 1), delivery_count), self._names[consumer]\n",
        "Offsets(offset, 1), delivery_count), self._names[0]\n",
        LEASES,
    ),
    Bug(
        "what comes in another lane is not seen while one has messages",
        "delivery/lanes.py",
        "        if alone is not None and end == self._end and alone._stop > alone._first:\n",
        "        if alone is not None and alone._stop > alone._first:\n",
        LANES,
    ),
    Bug(
        "lanes that go back are taken for empty while one has messages",
        "delivery/lanes.py",
        "    def back_to(self, offset: int) -> None:\n        self._alone = None\n",
        "    def back_to(self, offset: int) -> None:\n",
        LANES,
    ),
    Bug(
        "a message of a run is handed out again while another one of it is in flight",
        "delivery/picking.py",
        "elif key not in self._keys_seen and all(each in retries.waiting for each in run):",
        "elif key not in self._keys_seen and any(each in retries.waiting for each in run):",
        "tests/integration/broker/test_key_runs.py",
    ),
    Bug(
        "a later message of a run does not wait for the delay of an earlier one",
        "delivery/picking.py",
        """\
                    if not is_alike or not retries.is_due(each) or len(found) >= want:
                        break""",
        """\
                    if not is_alike or not retries.is_due(each) or len(found) >= want:
                        continue""",
        "tests/integration/broker/test_key_runs.py",
    ),
    Bug(
        "a message that is done although its lease was lost stays in the next lease",
        "delivery/queue.py",
        "events: list[Event] = [Acked(nonce, held) for nonce, held in holders.items()]",
        "events: list[Event] = [Acked(0, held) for nonce, held in holders.items()]",
        "tests/integration/broker/test_lost_leases.py",
    ),
]
