"""The calls of the API that are about delayed messages."""

from __future__ import annotations

from penstock.broker.api_part import ApiPart, topic_of
from penstock.model import calls
from penstock.model.messages import DelayedPage
from penstock.model.stats import DelayStats
from penstock.model.topics import Found


class DelayApi(ApiPart):
    """Delayed messages: those of a topic, and how many there are."""

    def list_delayed(self, call: calls.ListDelayed) -> DelayedPage:
        bytes_max = self._answer_bytes_max
        found = self._broker.delayed(topic_of(call), call.after, call.limit, bytes_max)
        is_full = len(found) == call.limit or (
            bytes_max is not None and sum(each.message.nbytes for _, each in found) >= bytes_max
        )
        return DelayedPage(
            delayed=[each for _, each in found],
            next=found[-1][0] + 1 if is_full and found else None,
        )

    def describe_delays(self, call: calls.DescribeDelays) -> DelayStats:
        return self._broker.delay_stats(topic_of(call))

    def cancel_delayed(self, call: calls.CancelDelayed) -> Found:
        return Found(found=self._broker.cancel(topic_of(call), call.id))

    def summarize_delays(self, call: calls.SummarizeDelays) -> DelayStats:
        return self._broker.all_delay_stats(call.namespace)
