"""Which requests are answered, in which versions, and by whom.

Only versions without tagged fields are offered where clients do without; clients of today take
these as they take those of a broker of 2.4. The lowest versions are those that older clients look
for, and some of these are offered without being carried out: nobody sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

from penstock.server.kafka import (
    admin,
    authentication,
    consumer,
    fetch,
    group_listing,
    groups,
    metadata,
    produce,
    share,
    transactions,
)
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code
from penstock.server.kafka.messages import API_VERSIONS, NOW, Answer, Head

Handled: TypeAlias = Answer | Coroutine[Any, Any, Answer]

NO_ANSWER = produce.NO_ANSWER


class KafkaApi(NamedTuple):
    key: int
    first_version: int
    last_version: int
    handle: Callable[[KafkaCall], Handled]


def api_versions(call: KafkaCall) -> Answer:
    return versions_answer(Code.NONE)


APIS = {
    api.key: api
    for api in (
        KafkaApi(0, 0, 8, produce.produce),
        KafkaApi(1, 0, 11, fetch.fetch),
        KafkaApi(2, 0, 5, fetch.list_offsets),
        KafkaApi(3, 0, 12, metadata.metadata),
        KafkaApi(8, 0, 9, groups.offset_commit),
        KafkaApi(9, 0, 9, groups.offset_fetch),
        KafkaApi(10, 0, 2, groups.find_coordinator),
        KafkaApi(11, 0, 5, groups.join_group),
        KafkaApi(12, 0, 3, groups.heartbeat),
        KafkaApi(13, 0, 3, groups.leave_group),
        KafkaApi(14, 0, 3, groups.sync_group),
        KafkaApi(15, 0, 4, groups.describe_groups),
        KafkaApi(16, 0, 5, group_listing.list_groups),
        KafkaApi(17, 0, 1, authentication.handshake),
        KafkaApi(API_VERSIONS, 0, 4, api_versions),
        KafkaApi(19, 2, 4, admin.create_topics),
        KafkaApi(20, 1, 3, admin.delete_topics),
        KafkaApi(21, 0, 1, admin.delete_records),
        KafkaApi(22, 0, 1, produce.init_producer_id),
        KafkaApi(23, 2, 3, fetch.offset_for_leader_epoch),
        KafkaApi(24, 0, 2, transactions.add_partitions),
        KafkaApi(25, 0, 2, transactions.add_offsets),
        KafkaApi(26, 0, 2, transactions.end),
        KafkaApi(28, 0, 2, transactions.commit_offsets),
        KafkaApi(32, 1, 3, admin.describe_configs),
        KafkaApi(33, 0, 1, admin.alter_configs),
        KafkaApi(36, 0, 1, authentication.authenticate),
        KafkaApi(37, 0, 1, admin.create_partitions),
        KafkaApi(42, 0, 1, groups.delete_groups),
        KafkaApi(44, 0, 1, admin.incremental_alter_configs),
        KafkaApi(68, 0, 1, consumer.consumer_group_heartbeat),
        KafkaApi(69, 0, 1, consumer.consumer_group_describe),
        KafkaApi(76, 1, 1, share.share_group_heartbeat),
        KafkaApi(77, 1, 1, share.share_group_describe),
        KafkaApi(78, 1, 1, share.share_fetch),
        KafkaApi(79, 1, 1, share.share_acknowledge),
        KafkaApi(60, 0, 0, metadata.describe_cluster),
    )
}

UNAUTHENTICATED = {17, API_VERSIONS, 36}
"""What a client may ask before it said who it is."""


def supported(head: Head) -> KafkaApi | None:
    api = APIS.get(head.key)
    return api if api and api.first_version <= head.version <= api.last_version else None


def versions_answer(code: Code) -> Answer:
    return Answer(
        error_code=code,
        api_keys=[
            Answer(api_key=api.key, min_version=api.first_version, max_version=api.last_version)
            for api in APIS.values()
        ],
        throttle_time=NOW,
        supported_features=(),
        finalized_features_epoch=-1,
        finalized_features=(),
        zk_migration_ready=False,
    )
