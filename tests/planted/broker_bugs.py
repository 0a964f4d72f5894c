"""Bugs where the broker joins delivery and groups with the log: what is written, in which order,
and what a restart makes of it.
"""

from __future__ import annotations

from tests.planted.bug import Bug

CRASHES = "tests/simulation/test_broker_crashes.py"
JOURNAL = "tests/simulation/test_journal.py"
INTEGRATION = "tests/integration/broker"

INTERRUPTED = f"{INTEGRATION}/test_interrupted.py"

BROKER_BUGS = [
    # Ctrl-C, in a program that goes on.
    Bug(
        "a decision that was interrupted is believed by half",
        "broker/ledgered_partition.py",
        "        for _ in range(_INTERRUPTS_MAX):",
        "        self._in_doubt = False\n        for _ in ():",
        INTERRUPTED,
    ),
    Bug(
        "after an interrupt, letters do not count that the ledger does not know of",
        "broker/ledgered_partition.py",
        "        self._believe_letters_since([] if image is None else image.letters_known)\n",
        "",
        INTERRUPTED,
    ),
    Bug(
        "a transaction that was interrupted once it was stored forgets where",
        "broker/transactions.py",
        "            if was_appended(done, topic):\n                self._committed(done, 0)\n",
        "            if partition.transaction_stored == number:\n"
        "                self._committed(done, 0)\n",
        INTERRUPTED,
    ),
    Bug(
        "a transaction that was interrupted keeps its locks",
        "broker/transaction_plan.py",
        "        except BaseException:  # Ctrl-C too",
        "        except PenstockError:  # Ctrl-C too",
        INTERRUPTED,
    ),
    Bug(
        "a producer numbers a batch again whose sending was interrupted",
        "client/producer.py",
        "        except (PenstockError, OSError, MemoryError, asyncio.CancelledError):\n",
        "        except BaseException:\n",
        INTERRUPTED,
    ),
    Bug(
        "a batch of messages is complete and pending at once",
        "log/appender.py",
        "            finally:  # also after",
        "            except PenstockError:\n                raise\n            else:  # also after",
        INTERRUPTED,
    ),
    Bug(
        "a limit that is set later does not count what is settled",
        "broker/topic.py",
        "        self.settings = settings\n        self._follow_settings()\n",
        "        self.settings = settings\n",
        "tests/integration/broker/test_long_poll.py",
    ),
    Bug(
        "chores go on in a folder that is gone",
        "broker/broker.py",
        "        self._housekeeper.give_up()\n",
        "",
        f"{INTEGRATION}/test_lost_folder.py::test_it_is_told_once_and_not_by_every_chore_that_falls_due",
    ),
    Bug(
        "each partition has an order of ids of its own",
        "log/local_engine.py",
        "            ulids=self._ulids,\n",
        "",
        f"{INTEGRATION}/test_misconfigured.py",
    ),
    Bug(
        "acks of the last second are not in the rate",
        "broker/group_latencies.py",
        "            self._count_samples()\n            return self._acked",
        "            return self._acked",
        "tests/unit/broker/test_group_latencies.py",
    ),
    # What is withheld from whom.
    Bug(
        "letters that are gone are delivered to groups that come later",
        "broker/ledgered_partition.py",
        "            self.queues[group] = queue\n            self._withhold(group)\n",
        "            self.queues[group] = queue\n",
        "tests/integration/broker/test_redrive.py",
    ),
    Bug(
        "a restart forgets whom a redriven message is for",
        "broker/ledgered_partition.py",
        "        elif header.producer_id == REDRIVEN:\n",
        "        elif False:\n",
        CRASHES,
    ),
    Bug(
        "a checkpoint forgets whom redriven messages are for",
        "broker/ledgered_partition.py",
        "            redriven = self.redriven.snapshot()\n",
        "            redriven = {}\n",
        "tests/integration/broker/test_redrive.py",
    ),
    Bug(
        "compaction takes messages that a group has not done",
        "broker/compaction.py",
        "        done = done & each\n",
        "        done = done | each\n",
        "tests/integration/broker/test_compaction.py",
    ),
    Bug(
        "compaction takes an expired message that somebody holds",
        "broker/compaction.py",
        "        return _among(offsets, self._held)\n",
        "        return _among(offsets, EMPTY)\n",
        "tests/integration/broker/test_compaction.py",
    ),
    Bug(
        "frames are merged before a checkpoint knows who sent them",
        "broker/compaction.py",
        "            partition.checkpoint()  # merged frames no longer tell who sent them\n",
        "            pass\n",
        CRASHES,
    ),
    # What is believed, and when.
    Bug(
        "an ack is believed before it is in the ledger",
        "broker/ledgered_partition.py",
        """\
            durable = journal.append(_events_of(group) + ledger.encode(events))
            if len(events) > 1 or type(events[0]) is not Leased:
                self.traces.settled(group, queue, events, self.source, at_us)
            queue.apply(events)
""",
        """\
            queue.apply(events)
            durable = journal.append(_events_of(group) + ledger.encode(events))
            if len(events) > 1 or type(events[0]) is not Leased:
                self.traces.settled(group, queue, events, self.source, at_us)
""",
        CRASHES,
    ),
    Bug(
        "a dead letter is stored after the event that lets its message go",
        "broker/ledgered_partition.py",
        """\
            for letter in letters:
                self._letters.store(self.number, group, letter, self.source.fetch(letter.offsets))
            durable = self._carry_out(group, queue, rest, at_us)
""",
        """\
            durable = self._carry_out(group, queue, rest, at_us)
            for letter in letters:
                self._letters.store(self.number, group, letter, self.source.fetch(letter.offsets))
""",
        CRASHES,
    ),
    Bug(
        "a lease can be lost that a letter names",
        "broker/ledgered_partition.py",
        """\
            if self.journal.log.config.fsync != "never":
                self.journal.log.ordered()""",
        """\
            if False:
                self.journal.log.ordered()""",
        CRASHES,
    ),
    Bug(
        "a letter is believed that a power cut can take",
        "broker/dead_letter_store.py",
        "    end = log.durable_end\n",
        "    end = log.end\n",
        CRASHES,
    ),
    Bug(
        "letters that may not last are taken for known",
        "broker/ledgered_partition.py",
        "            letters_known = self._letters_in_doubt\n",
        "            letters_known = None\n",
        CRASHES,
    ),
    Bug(
        "letters of a topic that is made again are taken for known",
        "broker/topic_calls.py",
        "                checkpoint_all(topic)  # new letters would have the offsets of old ones\n",
        "                pass\n",
        CRASHES,
    ),
    Bug(
        "a dead letter is not synced before its message is done with",
        "broker/dead_letter_store.py",
        """\
            dead.partitions[partition].log.ordered()
""",
        """\
            pass
""",
        CRASHES,
    ),
    Bug(
        "a letter whose ledger entry was lost is not finished at the start",
        "broker/dead_letter_store.py",
        "            finished += topic.partitions[origin.partition].finish_dead_letter(origin)\n",
        "            pass\n",
        CRASHES,
    ),
    Bug(
        "a letter is taken for that of any lease on its message",
        "delivery/queue.py",
        "lease is not None and lease.those_held(Offsets.one(offset)).count > 0",
        "lease is not None or offset in state.outstanding",
        CRASHES,
    ),
    Bug(
        "a letter is taken for that of any message at its offset",
        "broker/ledgered_partition.py",
        "message.id == origin.id and (origin.nonce or message.expires_at_us is not None)",
        "True",
        CRASHES,
    ),
    Bug(
        "a letter is forgotten when the entry about it finds no room",
        "broker/ledgered_partition.py",
        "            self._believe_letters()\n",
        "            pass\n",
        CRASHES,
    ),
    Bug(
        "a lane still has what became a letter in its read-ahead",
        "broker/ledgered_partition.py",
        "            self._renew(group)  # a lane may have them in its read-ahead\n",
        "            pass\n",
        CRASHES,
    ),
    Bug(
        "a checkpoint takes letters for known that come after it",
        "broker/dead_letter_store.py",
        "[each.log.durable_end for each in dead.partitions]",
        "[each.log.end + 1 for each in dead.partitions]",
        CRASHES,
    ),
    Bug(
        "a letter is done with before its message is published again",
        "broker/dead_letters.py",
        """\
            topic = self._broker.topic(self._name)
            never_stored = [letter for letter in page if letter.reason == SCHEMA_REASON]
""",
        """\
            topic = self._broker.topic(self._name)
            _finish(partition, page)
            never_stored = [letter for letter in page if letter.reason == SCHEMA_REASON]
""",
        CRASHES,
    ),
    # Checkpoints.
    Bug(
        "what a checkpoint replaces is trimmed before it is durable",
        "broker/journal.py",
        """\
        self.log.ordered()  # `trim` asks for what it drops to be durable, not for what is left
""",
        "",
        JOURNAL,
    ),
    Bug(
        "a checkpoint speaks of messages that a power cut can still take",
        "broker/ledgered_partition.py",
        """\
        self.log.ordered()  # most of it now, so that nobody has to wait for it below
        with self.lock:
            if self._in_doubt:
                self._fold_again()
            letters_known = self._letters_in_doubt
            if letters_known is None:
                letters_known = self._letters.ends()
            if self._checkpointed == (self.log.end, self.journal.log.end, letters_known):
                return
            with self._publish_lock:
                log_offset, producers = self.log.end, self.producers.snapshot()
                callers = self.callers.snapshot()
                stored, stored_at = self.transaction_stored, self.transaction_offset
                self.log.ordered()  # the state below speaks of messages that must not be lost
""",
        """\
        with self.lock:
            if self._in_doubt:
                self._fold_again()
            letters_known = self._letters_in_doubt
            if letters_known is None:
                letters_known = self._letters.ends()
            if self._checkpointed == (self.log.end, self.journal.log.end, letters_known):
                return
            with self._publish_lock:
                log_offset, producers = self.log.end, self.producers.snapshot()
                callers = self.callers.snapshot()
                stored, stored_at = self.transaction_stored, self.transaction_offset
""",
        CRASHES,
    ),
    # What a restart has to know.
    Bug(
        "the sequence of an idempotent producer is not recovered",
        "broker/ledgered_partition.py",
        "        elif header.producer_id > 0:\n",
        "        elif header.producer_id > 1 << 63:\n",
        f"{INTEGRATION}/test_producer.py::test_a_batch_that_is_sent_again_is_not_stored_twice",
    ),
    Bug(
        "the deduplication window is not rebuilt",
        "broker/topic_calls.py",
        "            topic.rebuild_dedup(self._catalog.dedup_window_ms(name))\n",
        "            pass\n",
        f"{INTEGRATION}/test_dedup.py::test_ids_are_remembered_after_a_restart",
    ),
    Bug(
        "the ids of messages that wait are not rebuilt",
        "broker/topic_dedup.py",
        "heapq.merge(*found, _waiting(delays), key=_published)",
        "heapq.merge(*found, key=_published)",
        f"{INTEGRATION}/test_dedup.py"
        "::test_a_delayed_message_is_stored_once_while_it_waits_and_after",
    ),
    Bug(
        "a cancelled message keeps its deduplication id",
        "broker/topic_dedup.py",
        "                self._window.forget(digest_of(name), message.ulid)\n",
        "                pass\n",
        f"{INTEGRATION}/test_dedup.py::test_the_id_of_a_message_that_was_cancelled_is_new",
    ),
    Bug(
        "the longest window by call is not remembered",
        "broker/catalog.py",
        "                self._store(DedupUsed(name, window_ms))\n",
        "                self._store(DedupUsed(name))\n",
        f"{INTEGRATION}/test_dedup.py::test_a_call_may_have_a_window_of_its_own",
    ),
    Bug(
        "the ids of moved messages are ignored at recovery",
        "broker/delays.py",
        "        moved = {id_ for ids in moved_ids for id_ in ids.to_pylist()}\n",
        "        moved: set[object] = set()\n",
        f"{INTEGRATION}/test_delays.py::test_a_kill_at_any_write_moves_each_message_exactly_once",
    ),
    Bug(
        "what the log lost is still acked in the ledger",
        "broker/ledgered_partition.py",
        "                partial(queue.truncate, self.log.end),\n",
        "",
        CRASHES,
    ),
    Bug(
        "entries about delayed messages that a power cut took are not void",
        "broker/delays.py",
        "            elif self._holds(entry.partition, entry.end):\n",
        "            elif isinstance(entry, _Done):\n",
        CRASHES,
    ),
    Bug(
        "positions in a deleted topic are taken for those of the next one of its name",
        "broker/streams.py",
        "self._store(coordinator, [coordinator.forget_topic(str(deleted))])",
        "pass",
        f"{INTEGRATION}/test_topics.py::test_a_deleted_topic_takes_everything_with_it",
    ),
    # Time.
    Bug(
        "leases expire by the wall clock",
        "broker/partition.py",
        """\
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._look_ns:
                self._expire(group, queue, now_ns)
""",
        """\
            wall_ns = self._clock.wall_ns()
            start = self.__dict__.setdefault("_start", (wall_ns, self._clock.monotonic_ns()))
            now_ns = wall_ns - start[0] + start[1]
            if now_ns >= self._look_ns:
                self._expire(group, queue, now_ns)
""",
        f"{INTEGRATION}/test_leases.py::"
        "test_a_wall_clock_that_jumps_neither_steals_a_lease_nor_keeps_it_for_ever",
    ),
    Bug(
        "nobody is told when a lease runs out",
        "broker/partition.py",
        "                    if look_ns < self._look_ns:\n"
        "                        self._look_at(look_ns)\n",
        "",
        f"{INTEGRATION}/test_long_poll.py::test_it_wakes_when_a_lease_runs_out",
    ),
    Bug(
        "a start takes leases that ended long ago for alive",
        "broker/ledgered_partition.py",
        "                partial(queue.end_old_leases, wall_us),\n",
        "",
        f"{INTEGRATION}/test_leases.py::test_a_lease_is_over_at_the_start_if_it_ended_a_minute_ago",
    ),
    Bug(
        "nobody tells the ledger the time",
        "broker/partition.py",
        "                self._note_time(group, queue, now_ns)\n",
        "",
        f"{INTEGRATION}/test_leases.py"
        "::test_a_lease_ends_although_the_broker_is_killed_again_and_again",
    ),
    Bug(
        "nobody is told when a retry falls due",
        "broker/partition.py",
        """\
            if look_ns is not None:
                self._look_at(look_ns)
        if (on_settled := self.on_settled) is not None:
            on_settled()
""",
        """\
        if (on_settled := self.on_settled) is not None:
            on_settled()
""",
        f"{INTEGRATION}/test_long_poll.py::test_it_wakes_when_a_retry_falls_due",
    ),
    Bug(
        "a receive does not look for leases that ran out",
        "broker/partition.py",
        """\
            if now_ns >= self._look_ns:
                self._expire(group, queue, now_ns)
""",
        "",
        f"{INTEGRATION}/test_leases.py::test_an_expired_lease_is_noticed_without_housekeeping",
    ),
    Bug(
        "a delayed message is popped early",
        "broker/delays.py",
        "due = self._wheel.pop_due(self._clock.wall_ns() // 1000)[1]",
        "due = self._wheel.pop_due(self._clock.wall_ns() // 1000 + 1000)[1]",
        f"{INTEGRATION}/test_delays.py::test_a_delayed_message_comes_when_it_is_due_and_not_before",
    ),
    Bug(
        "a wall clock that was set is not noticed while a message is delayed",
        "broker/delays.py",
        "        return now_ns + min(max(wait_ns, 0), RECHECK_NS)\n",
        "        return now_ns + max(wait_ns, 0)\n",
        f"{INTEGRATION}/test_delays.py::"
        "test_a_clock_that_is_set_forward_is_noticed_within_a_second",
    ),
    # Groups, and who waits.
    Bug(
        "groups share what is in flight",
        "broker/ledgered_partition.py",
        """\
            self._carry_out(group, queue, first)
            self.queues[group] = queue
""",
        """\
            self._carry_out(group, queue, first)
            for other in self.queues.values():
                queue.state.outstanding = other.state.outstanding
            self.queues[group] = queue
""",
        f"{INTEGRATION}/test_seen_elsewhere.py::test_goqueue_groups_block_each_other",
    ),
    Bug(
        "the short way of a publish goes past the TTL of the topic",
        "broker/topic.py",
        'settings.schema_check == "none" and settings.ttl_ms is None',
        'settings.schema_check == "none"',
        f"{INTEGRATION}/test_short_ways.py",
    ),
    Bug(
        "who waits is not told of a new message",
        "broker/topic.py",
        '        """There is more to read."""\n'
        "        if self.waiters.callbacks:\n            self.waiters.notify()\n",
        '        """There is more to read."""\n',
        f"{INTEGRATION}/test_long_poll.py::test_a_publish_wakes_a_real_broker_at_once",
    ),
    Bug(
        "a cancelled message is only forgotten, not noted",
        "broker/delays.py",
        "            self._finish(Offsets.one(message.offset))\n"
        "            self._wheel.cancel([message.offset])\n",
        "            self._wheel.cancel([message.offset])\n",
        f"{INTEGRATION}/test_delays.py::test_what_was_taken_back_stays_so",
    ),
    Bug(
        "retention drops what a stream group has not read",
        "broker/streams.py",
        "        return [each.get(partition, start) for each in self.positions(name).values()]\n",
        "        return []\n",
        f"{INTEGRATION}/test_ttl_and_retention.py::test_a_stream_group_counts_too",
    ),
    Bug(
        "whoever opens a topic of many partitions holds up everybody",
        "broker/topic_calls.py",
        "            self._unopened.opening(name)\n        topic = ",
        "            self._unopened.opening(name)\n            topic = ",
        "tests/integration/broker/test_opening.py",
    ),
    Bug(
        "the topic of the dead letters is made while that of the messages is opened",
        "broker/topic_calls.py",
        "        while dead not in found:\n",
        "        while dead not in found and dead in self._catalog:\n",
        "tests/integration/broker/test_opening.py",
    ),
    Bug(
        "a topic is changed while another thread opens its new dead letters",
        "broker/topic_calls.py",
        "        return [*self._with_dead_letters(name), *self._with_dead_letters(name, new)]\n",
        "        return self._with_dead_letters(name)\n",
        "tests/integration/broker/test_opening.py",
    ),
    Bug(
        "topics are opened to count them while one is made",
        "broker/tenants.py",
        "        topics_made, partitions_made = self.made_in(name.namespace)\n",
        "        used = self.measure(name.namespace)\n"
        "        topics_made, partitions_made = used.topics, used.partitions\n",
        "tests/integration/broker/test_opening.py",
    ),
    Bug(
        "a thread waits for a claim with the broker's lock in hand",
        "broker/claims.py",
        "    def _take(self, names: Callable[[], list[TopicName]], claim: Claim) -> None:\n"
        "        self._check_lock_is_free()\n",
        "    def _take(self, names: Callable[[], list[TopicName]], claim: Claim) -> None:\n",
        "tests/unit/broker/test_claims.py",
    ),
    Bug(
        "a namespace is deleted with the topics that it had at first",
        "broker/topic_calls.py",
        "            return None if self.topics(namespace) else self.tenants.delete(namespace)\n",
        "            return self.tenants.delete(namespace)\n",
        "tests/integration/broker/test_opening.py",
    ),
    Bug(
        "the event loop waits while the logs of a topic are opened",
        "server/long_calls.py",
        "        return name in self._running or not self._is_open(name)\n",
        "        return name in self._running\n",
        "tests/integration/server/test_first_use.py",
    ),
]
