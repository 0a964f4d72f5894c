"""boto3 as it comes, and boto3 told to speak the protocol that it spoke until 2023."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

CREDENTIALS = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}


def client(url: str, *, query: bool = False, region: str = "eu-west-1", **credentials: str) -> Any:
    session = botocore.session.Session()
    if query:
        session.register_component("data_loader", _older_loader())
    return session.create_client(
        "sqs",
        endpoint_url=url,
        region_name=region,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=40,
            max_pool_connections=20,
        ),
        **(credentials or CREDENTIALS),
    )


_ITEMS = {
    "AttributeNameList": "AttributeName",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "TagKeyList": "TagKey",
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "QueueUrlList": "QueueUrl",
    "MessageList": "Message",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
}
_MAPS = {
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}


def _older_loader() -> Loader:
    loader = Loader()
    load = loader.load_service_model

    def load_service_model(service: str, kind: str, api_version: str | None = None) -> Any:
        if service == "sqs" and kind == "service-2":
            return _older_model()
        return load(service, kind, api_version)

    loader.load_service_model = load_service_model  # type: ignore[method-assign]
    return loader


@lru_cache(maxsize=1)
def _older_model() -> Any:
    """The names of lists and maps as they were in the model of the older protocol."""
    model = copy.deepcopy(Loader().load_service_model("sqs", "service-2"))
    metadata = model["metadata"]
    metadata["protocol"], metadata["protocols"] = "query", ["query"]
    metadata.pop("awsQueryCompatible", None)
    metadata["xmlNamespace"] = "http://queue.amazonaws.com/doc/2012-11-05/"
    shapes = model["shapes"]
    for name, item in _ITEMS.items():
        shapes[name]["member"]["locationName"] = item
    for name, (_, key, value) in _MAPS.items():
        shapes[name]["key"]["locationName"] = key
        shapes[name]["value"]["locationName"] = value
    for shape in shapes.values():
        for member in shape.get("members", {}).values():
            target = member["shape"]
            if target in _ITEMS:
                member["locationName"] = _ITEMS[target]
            elif target in _MAPS:
                member["locationName"] = _MAPS[target][0]
    for operation in model["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{operation['name']}Result"
    return model
