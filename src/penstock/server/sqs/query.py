"""The older protocol: a form comes in, XML goes out. No XML is ever read.

Lists and maps are numbered in the names of the form (`Attribute.1.Name`, `Attribute.1.Value`); in
the answer they are repeated elements without one around them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin
from xml.sax.saxutils import escape

import msgspec

from penstock.server.sqs.problems import SqsProblem

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_PARAMETERS_MAX = 2000
_NUMBER = re.compile(r"[1-9][0-9]{0,2}")

_LISTS = {
    "AttributeNames": "AttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
}
_MAPS = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "MessageSystemAttributes": ("MessageSystemAttribute", "Name"),
    "tags": ("Tag", "Key"),
    "Tags": ("Tag", "Key"),
}
_ENTRIES = {
    "SendMessageBatch": "SendMessageBatchRequestEntry",
    "DeleteMessageBatch": "DeleteMessageBatchRequestEntry",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibilityBatchRequestEntry",
}
_RESULT_LISTS = {
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}

_Tree = dict[str, Any]


def parameters(action: str, form: Mapping[str, str], kind: type[msgspec.Struct]) -> _Tree:
    """The parameters of a form as the newer protocol has them, for one struct."""
    if len(form) > _PARAMETERS_MAX:
        raise SqsProblem("InvalidParameterValue", f"more than {_PARAMETERS_MAX} parameters")
    tree: _Tree = {}
    for name, value in form.items():
        steps = name.split(".")
        if len(steps) > 6:
            continue
        node: Any = tree
        for step in steps[:-1]:
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                break
        if isinstance(node, dict):
            node[steps[-1]] = value
    return _struct(tree, kind, _ENTRIES.get(action, ""))


def _struct(tree: _Tree, kind: type[msgspec.Struct], entries: str = "") -> _Tree:
    found: _Tree = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name == "Entries":
            item = get_args(field.type)[0]
            found[name] = [_struct(each, item) for each in _numbered(tree.get(entries))]
        elif name in _LISTS:
            found[name] = _texts(tree.get(_LISTS[name]))
        elif name in _MAPS:
            element, key = _MAPS[name]
            value_type = get_args(field.type)[1]
            found[name] = {
                each.get(key, ""): _value(each.get("Value"), value_type)
                for each in _numbered(tree.get(element))
            }
        elif name in tree:
            found[name] = tree[name]
    return {name: value for name, value in found.items() if value not in ([], {})}


def _value(value: Any, kind: Any) -> Any:
    if get_origin(kind) is UnionType or not isinstance(kind, type):
        return value
    is_struct = issubclass(kind, msgspec.Struct)
    return _struct(value, kind) if is_struct and isinstance(value, dict) else value or ""


def _numbered(node: Any) -> list[_Tree]:
    return [each for each in _in_order(node) if isinstance(each, dict)]


def _texts(node: Any) -> list[str]:
    return [each for each in _in_order(node) if isinstance(each, str)]


def _in_order(node: Any) -> list[Any]:
    """What is numbered, by its numbers."""
    if not isinstance(node, dict):
        return []
    node = node.get("member", node)
    if not isinstance(node, dict):
        return []
    return [node[each] for each in sorted(filter(_NUMBER.fullmatch, node), key=int)]


def answer_xml(action: str, result: Mapping[str, Any] | None, request_id: str) -> bytes:
    body = ""
    if result is not None:
        body = f"<{action}Result>{''.join(_elements(action, result))}</{action}Result>"
    return (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{body}<ResponseMetadata>'
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    ).encode()


def error_xml(problem: SqsProblem, request_id: str) -> bytes:
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error>'
        f"<Type>{problem.fault}</Type><Code>{_text(problem.code)}</Code>"
        f"<Message>{_text(str(problem))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode("utf-8", "replace")


def _elements(action: str, result: Mapping[str, Any]) -> Iterator[str]:
    for name, value in result.items():
        if isinstance(value, dict):
            element, key = _MAPS.get(name, (name, ""))
            if not key:  # a message attribute
                yield f"<{name}>{''.join(_elements(action, value))}</{name}>"
                continue
            for each, its in value.items():
                inner = "".join(_elements(action, {key: each, "Value": its}))
                yield f"<{element}>{inner}</{element}>"
        elif isinstance(value, list):
            element = _RESULT_LISTS.get(name) or f"{action}ResultEntry"
            for each in value:
                inner = _text(each) if isinstance(each, str) else "".join(_elements(action, each))
                yield f"<{element}>{inner}</{element}>"
        else:
            yield f"<{name}>{_text(value)}</{name}>"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(str(value), {"\r": "&#13;"})
