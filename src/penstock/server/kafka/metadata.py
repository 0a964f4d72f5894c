"""What there is: the broker that has the client's namespace, others that send on to it, topics."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import UUID

from penstock.errors import PenstockError, TopicNotFound
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer

NO_OPERATIONS = -(1 << 31)

_LOOP_TOPICS = 50


def metadata(call: KafkaCall) -> Answer | Coroutine[Any, Any, Answer]:
    wanted = call.body.topics
    if wanted is None or (not wanted and call.version == 0):
        return _all_topics(call)
    names = [topic.name for topic in wanted]
    if None in names:
        return call.door.aside(_by_id, call, [topic.topic_id for topic in wanted])
    if getattr(call.body, "allow_auto_topic_creation", True) and call.door.config.auto_create:
        return call.door.aside(_metadata, call, names, True)
    if len(names) > _LOOP_TOPICS:
        return call.door.aside(_metadata, call, names, False)
    return _metadata(call, names, False)


def describe_cluster(call: KafkaCall) -> Answer:
    return Answer(
        throttle_time=NOW,
        error_code=Code.NONE,
        error_message=None,
        cluster_id=call.broker.cluster_id,
        controller_id=call.broker.id,
        brokers=_brokers(call),
        cluster_authorized_operations=NO_OPERATIONS,
    )


async def _all_topics(call: KafkaCall) -> Answer:
    def ask() -> Answer:
        names = call.api.partition_counts(call.namespace) if call.may("describe") else {}
        return _metadata(call, sorted(names), False)

    return await call.door.aside(ask)


def _metadata(call: KafkaCall, names: Sequence[str], make: bool) -> Answer:
    return Answer(
        throttle_time=NOW,
        brokers=_brokers(call),
        cluster_id=call.broker.cluster_id,
        controller_id=call.broker.id,
        topics=[_topic(call, name, make) for name in names],
        cluster_authorized_operations=NO_OPERATIONS,
    )


def _by_id(call: KafkaCall, ids: Sequence[UUID | None]) -> Answer:
    found = [(id_, call.broker.topic_ids.find(id_, call.namespace)) for id_ in ids]
    answer = _metadata(call, [name.topic for _, name in found if name is not None], False)
    answer.topics += [
        _told(call, None, id_, Code.UNKNOWN_TOPIC_ID, 0) for id_, name in found if name is None
    ]
    return answer


def _brokers(call: KafkaCall) -> list[Answer]:
    return [
        Answer(node_id=at.id, broker_id=at.id, host=at.host, port=at.port, rack=None)
        for at in call.broker.all_for(call.session)
    ]


def _topic(call: KafkaCall, topic: str, make: bool) -> Answer:
    code, partitions, id_ = Code.NONE, 0, None
    try:
        call.check("describe")
        name = call.topic(topic)
        try:
            id_, described = call.broker.topic_ids.describe(name)
        except TopicNotFound:
            if not make or not call.may("publish"):
                raise
            call.api.partitions(name)  # which makes it
            id_, described = call.broker.topic_ids.describe(name)
        partitions = described.settings.partitions
    except Refused as exc:
        code = exc.code
    except PenstockError as exc:
        code = refusal_of(exc).code
    return _told(call, topic, id_, code, partitions)


def _told(
    call: KafkaCall, topic: str | None, id_: UUID | None, code: Code, partitions: int
) -> Answer:
    return Answer(
        error_code=code,
        name=topic,
        topic_id=id_,
        is_internal=False,
        partitions=[_partition(number, call.broker.id) for number in range(partitions)],
        topic_authorized_operations=NO_OPERATIONS,
    )


def _partition(number: int, broker: int) -> Answer:
    return Answer(
        error_code=Code.NONE,
        partition_index=number,
        leader_id=broker,
        leader_epoch=-1,
        replica_nodes=(broker,),
        isr_nodes=(broker,),
        offline_replicas=(),
    )
