"""Which namespace a request to the SQS API is for, before anything else of it is looked at.

In a cluster it says which node has to answer. What cannot be understood is for the default
namespace: whoever has that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

import msgspec

from penstock.model.names import DEFAULT_NAMESPACE
from penstock.server.http.answers import Request, parse_query
from penstock.server.keys import KeyStore
from penstock.server.sqs.accounts import Accounts
from penstock.server.sqs.moves import task_of_handle
from penstock.server.sqs.problems import SqsProblem
from penstock.server.sqs.signature import key_id_of

_NAMES = ("QueueUrl", "SourceArn", "TaskHandle", "QueueOwnerAWSAccountId")


class _Named(msgspec.Struct, rename="pascal"):
    """What of a request names a queue or an account."""

    queue_url: str = ""
    source_arn: str = ""
    task_handle: str = ""
    queue_owner: str = msgspec.field(default="", name="QueueOwnerAWSAccountId")


_decoder = msgspec.json.Decoder(_Named)


def namespace_of(request: Request, accounts: Accounts, keys: KeyStore, *, is_form: bool) -> str:
    """`request` is whole, with its body."""
    parameters = parse_query(request.query) if request.query else {}
    named = _of_form(request.body, parameters) if is_form else _of_json(request.body)
    path = request.path.removeprefix(request.root)
    try:
        if named.queue_url or path.strip("/"):
            return accounts.of_url(named.queue_url or path).namespace
        if named.source_arn:
            return accounts.of_arn(named.source_arn, "SourceArn").namespace
        if named.task_handle:
            return task_of_handle(named.task_handle)[0].namespace
        if named.queue_owner:
            return accounts.namespace(named.queue_owner)
    except SqsProblem:
        return DEFAULT_NAMESPACE
    key = keys.by_id(key_id_of(request.headers, parameters) or "")
    if key is None or key.namespace is None:
        return DEFAULT_NAMESPACE
    return key.namespace


def _of_json(body: bytes) -> _Named:
    try:
        return _decoder.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Named()


def _of_form(body: bytes, parameters: Mapping[str, str]) -> _Named:
    try:
        form = parse_qs(body.decode("ascii"), max_num_fields=10_000)
    except ValueError:
        form = {}
    found = {name: form[name][-1] for name in _NAMES if name in form}
    known = {name: value for name, value in parameters.items() if name in _NAMES}
    return msgspec.convert(known | found, _Named)
