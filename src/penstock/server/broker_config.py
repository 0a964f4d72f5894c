"""What of the configuration of a server is its broker's."""

from __future__ import annotations

from penstock.broker.broker import BrokerConfig
from penstock.config import ServerConfig
from penstock.model.settings import parse_topic_defaults


def broker_config_of(config: ServerConfig) -> BrokerConfig:
    return BrokerConfig(
        auto_create=config.auto_create,
        topic_defaults=parse_topic_defaults(config.topic_defaults),
        free_bytes_min=config.free_bytes_min,
    )
