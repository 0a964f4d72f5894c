"""Bugs in quotas: what is too much passes, what has to pass does not, or it is forgotten."""

from __future__ import annotations

from tests.planted.bug import Bug

TENANTS = "tests/integration/broker/test_tenants.py"
FAIRNESS = "tests/integration/broker/test_fairness.py"
LIVES = "tests/simulation/test_delivery.py"

TENANT_BUGS = [
    Bug(
        "a long batch is cut to what is there",
        "broker/quota_buckets.py",
        "        self._level = self._refilled(now_ns) - amount\n",
        "        self._level = max(self._refilled(now_ns) - amount, -self.per_second)\n",
        TENANTS,
    ),
    Bug(
        "a bucket is never full again",
        "broker/quota_buckets.py",
        "        return min(self._level + passed_ns * self.per_second / 1e9, self.per_second)\n",
        "        return min(self._level, self.per_second)\n",
        TENANTS,
    ),
    Bug(
        "the quota of one namespace is that of all",
        "broker/tenants.py",
        "        limits = self._limits.get(namespace)\n        if limits is None:\n"
        "            return 0\n",
        "        limits = next(iter(self._limits.values()), None)\n        if limits is None:\n"
        "            return 0\n",
        TENANTS,
    ),
    Bug(
        "quotas are forgotten by a restart",
        "broker/tenants.py",
        "            self._fold(_entries.decode(entry))\n",
        "            _entries.decode(entry)\n",
        TENANTS,
    ),
    Bug(
        "a namespace that was deleted leaves its schemas behind",
        "broker/namespaces.py",
        "    return broker.schemas.forget(namespace) or bool(groups)\n",
        "    return bool(groups)\n",
        TENANTS,
    ),
    Bug(
        "full storage takes messages",
        "broker/tenants.py",
        "            self._check_storage(namespace, limits)\n",
        "",
        TENANTS,
    ),
    Bug(
        "the messages of a transaction are charged topic by topic",
        "broker/api.py",
        "= tenants.charge(staged.namespace, *batches)\n",
        "= max([tenants.charge(staged.namespace, each) for each in batches])\n",
        TENANTS,
    ),
    Bug(
        "a transaction that is refused is charged",
        "broker/transactions.py",
        "            plan = TransactionPlan(self._broker, staged)\n",
        "            plan = TransactionPlan(self._broker, staged)\n            charge()\n",
        f"{TENANTS}::test_a_transaction_that_is_refused_uses_up_no_quota",
    ),
    Bug(
        "the delayed messages of a transaction are counted one by one",
        "broker/transaction_plan.py",
        'check(self._namespace, "delayed", sum(delayed.values()))\n',
        'check(self._namespace, "delayed", max(delayed.values(), default=0))\n',
        TENANTS,
    ),
    Bug(
        "an answer that was held back never comes",
        "broker/tenants.py",
        "        self.plan(self._let_go, at_ns)\n",
        "",
        TENANTS,
    ),
    Bug(
        "a tenant that was served is served again",
        "delivery/fairness.py",
        "            order.move_to_end(tenant)\n",
        "            order.move_to_end(tenant, last=len(order) < 2)\n",
        f"{FAIRNESS} {LIVES}",
    ),
    Bug(
        "who is noisy is nobody",
        "delivery/fairness.py",
        "        return count >= NOISY_MIN and count * NOISY_SHARE > len(self._held)\n",
        "        return False\n",
        FAIRNESS,
    ),
    Bug(
        "what a receive did not hand out in the end is not found again",
        "delivery/picking.py",
        "            offset = found[place]\n            place += 1\n",
        "            offset = found.pop(place)\n",
        LIVES,
    ),
    Bug(
        "retries come before the turns",
        "delivery/picking.py",
        "            turns.add_due(due)\n",
        "            got += self._take_due(due[: want - got], drawn)\n",
        f"{FAIRNESS} {LIVES}",
    ),
    Bug(
        "after a restart nobody reads whose the messages are",
        "broker/fair_marks.py",
        "            marks[offsets[inside] - start] = self.of(batch)[inside]\n",
        "            marks[offsets[inside] - start] = 2 << TENANT_BITS\n",
        FAIRNESS,
    ),
    Bug(
        "a lane goes on behind what it passed over",
        "delivery/picking.py",
        "            skips = self._ordered or self._fair is not None\n",
        "            skips = self._ordered\n",
        LIVES,
    ),
]
