"""One request to the SQS API: head, body, signature, action, answer.

It comes as `POST /` (the newer protocol names its action in a header, the older one in a form) or
to the path of a queue. The head and the body are bounded as those of all requests are; what is
refused is told in the protocol in which it was asked.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError, RequestTooLarge
from penstock.randomness import own_random
from penstock.server.connections import COMPLETE, SCOPE
from penstock.server.door import Door
from penstock.server.http.answers import Answer, Request, parse_query
from penstock.server.http.bodies import body_too_large, read_body
from penstock.server.http.dispatch import LATER, Dispatcher, HttpExchange, RouteMatch, request_of
from penstock.server.http.endpoints import Endpoint
from penstock.server.http.heads import content_length, headers_of
from penstock.server.http.json_items import has_more_items
from penstock.server.keys import Key, sqs_secret
from penstock.server.sqs import query
from penstock.server.sqs.accounts import Accounts, Addresses
from penstock.server.sqs.actions import ACTIONS
from penstock.server.sqs.call import SqsCall, SqsState
from penstock.server.sqs.envelope import uuid_text
from penstock.server.sqs.moves import MoveTasks, task_of_handle
from penstock.server.sqs.problems import SqsProblem, missing, problem_of_error
from penstock.server.sqs.signature import SignedRequest, check, region_of, signature_of
from penstock.server.sqs.whereabouts import namespace_of

BODY_BYTES_MAX = 4 << 20
"""A batch of 1 MiB, each character of which may be written as six."""

JSON_TYPE = "application/x-amz-json-1.0"
XML_TYPE = "text/xml"
ASKED_AT = b"penstock-asked-at"
"""Of a request that another node of a cluster sent on: by which URL the client asked that one."""

_FORM_TYPE = "application/x-www-form-urlencoded"
_TARGET = b"x-amz-target"
_TARGETS = {f"AmazonSQS.{name}".encode(): name for name in ACTIONS}
_COUNTED_BYTES = 64 << 10
_ITEMS_MAX = 1000
_QUOTES_MAX = 20_000
_REGION = "us-east-1"
_SHAPE_PREFIX = "com.amazonaws.sqs#"

_encoder = msgspec.json.Encoder()
_request_ids = count(own_random.getrandbits(128 - 48) << 48)
_decoders = {name: msgspec.json.Decoder(action.kind) for name, action in ACTIONS.items()}
_ENDPOINT = Endpoint(
    name="sqs",
    method="POST",
    path="/",
    handler=lambda call: None,
    right=None,
    tag="sqs",
    summary="The SQS API.",
    options=None,
    no_options=None,
    body=None,
    body_schema=None,
    body_optional=False,
    items_in=0,
    other_bodies=(),
    result=None,
    result_types=(),
    status=200,
    in_namespaces=False,
)
_SETTLES = frozenset(
    (
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
        "DeleteMessage",
        "DeleteMessageBatch",
    )
)
_MATCH = RouteMatch(_ENDPOINT, {})


class SqsDispatcher(Dispatcher):
    """Answers requests to the SQS API on the event loop of the server."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self.state = SqsState(door, MoveTasks(door))

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.serve(_MATCH, scope, receive, send)

    async def namespace_of(self, scope: Scope, receive: Receive) -> tuple[str, bytes]:
        """The namespace that a request is for, and its body, which the caller then gives back to
        `buffers`."""
        headers = headers_of(scope["headers"], scope.get("http_version", ""))
        bytes_max = min(self.door.config.body_bytes_max, BODY_BYTES_MAX)
        length = content_length(headers)
        if length is not None and length > bytes_max:
            raise body_too_large(bytes_max)
        request = request_of(scope)
        request.headers = headers
        request.body = await read_body(receive, bytes_max, self.buffers, self._waits)
        is_form = request.content_type() == _FORM_TYPE
        accounts, keys = self.state.accounts, self.door.keys
        return namespace_of(request, accounts, keys, is_form=is_form), request.body

    async def _answer(
        self, exchange: HttpExchange, found: RouteMatch, scope: Scope, receive: Receive
    ) -> Answer:
        request = exchange.request
        self._check_head(exchange, scope)
        self._names.check_page(request.headers)
        asked_at = request.headers.get(ASKED_AT)
        own_host = request.headers.get(b"host", b"")
        if asked_at is not None:  # signed with that name, and answered with it
            request.headers[b"host"] = asked_at.partition(b"://")[2]
        kind = request.content_type()
        if kind not in (JSON_TYPE, _FORM_TYPE):
            raise SqsProblem(
                "UnsupportedOperation",
                f"A body of {kind or 'no type':.100} is not understood: it is {JSON_TYPE} with the "
                f"header X-Amz-Target, or {_FORM_TYPE}.",
            )
        bytes_max = min(self.door.config.body_bytes_max, BODY_BYTES_MAX)
        if exchange.length is not None and exchange.length > bytes_max:
            raise body_too_large(bytes_max)
        is_complete = COMPLETE in scope
        request.body = await read_body(
            receive, bytes_max, self.buffers, self._waits, is_complete=is_complete
        )
        exchange.unread = False
        parameters = parse_query(request.query) if request.query else {}
        exchange.key = key = self._signer(request, scope, parameters)
        if key is None:
            self._names.check_host({b"host": own_host})
        name, asked = _asked(request, parameters, is_form=kind == _FORM_TYPE)
        call = self._call(asked, request, scope, parameters)
        call.key = key
        action, namespace = ACTIONS[name], call.namespace
        self._gate.allow(key, action.right, namespace)
        if (connection := scope.get(SCOPE)) is not None:
            self._connections.use(connection, action.right, namespace, settles=name in _SETTLES)
        if call.name is not None and not self.door.api.is_open(call.name):
            await self.door.opened([call.name])
        outcome = action.handler(call)
        if isinstance(outcome, LATER):
            outcome = await self._wait(outcome, key, receive)
        return _answered(name, outcome, is_form=kind == _FORM_TYPE)

    def _signer(self, request: Request, scope: Scope, parameters: dict[str, str]) -> Key | None:
        """Whose request it is; None where no key is asked for."""
        keys = self.door.keys
        if keys.empty:
            return None
        raw_path = scope.get("raw_path") or request.path.encode()
        signed = SignedRequest(
            request.method,
            raw_path.decode("latin-1"),
            request.query,
            request.headers,
            request.body,
        )
        signature = signature_of(signed, parameters)
        if signature is None:
            raise SqsProblem(
                "MissingAuthenticationToken",
                "The request is not signed; the id of an API key is the access key id, and "
                "`penstock key create` shows its secret for SQS.",
            )
        key = keys.by_id(signature.key_id)
        if key is None:
            raise SqsProblem(
                "InvalidClientTokenId", "The access key id is not the id of an API key."
            )
        check(signature, signed, sqs_secret(key), time.time())
        return key

    def _call(
        self, asked: Any, request: Request, scope: Scope, parameters: dict[str, str]
    ) -> SqsCall:
        accounts = self.state.accounts
        topic = None
        if hasattr(asked, "queue_url"):
            path = request.path.removeprefix(request.root)
            if asked.queue_url or path.strip("/"):
                topic = accounts.of_url(asked.queue_url or path)
            else:
                raise missing("QueueUrl")
        elif hasattr(asked, "source_arn"):
            topic = accounts.of_arn(asked.source_arn, "SourceArn")
        elif hasattr(asked, "task_handle"):
            topic = task_of_handle(asked.task_handle)[0]
        return SqsCall(
            self.state, asked, topic, lambda: _addresses(accounts, request, scope, parameters)
        )

    def _failed(self, exc: Exception, request: Request) -> Answer:
        if isinstance(exc, SqsProblem):
            return _refused(exc, request)
        if isinstance(exc, PenstockError):
            return _refused(problem_of_error(exc), request)
        general = super()._failed(exc, request)
        return _refused(_problem_of_answer(general), request)


def _addresses(
    accounts: Accounts, request: Request, scope: Scope, parameters: dict[str, str]
) -> Addresses:
    """How the answer names queues: as the request came, and with the region that it names."""
    host = request.headers.get(b"host", b"").decode("latin-1")
    asked_at = request.headers.get(ASKED_AT, b"").decode("latin-1")
    base_url = (asked_at or f"{scope.get('scheme', 'http')}://{host}") + request.root
    return Addresses(accounts, base_url, region_of(request.headers, parameters) or _REGION)


def _asked(request: Request, parameters: dict[str, str], *, is_form: bool) -> tuple[str, Any]:
    """The action and its parameters."""
    if not is_form:
        target = request.headers.get(_TARGET, b"")
        known = _TARGETS.get(target)
        if known is None:
            text = target.decode("latin-1")
            raise SqsProblem("UnsupportedOperation", f"{text!r:.100} is no action of SQS.")
        return known, _decoded(known, request.body)
    try:
        text = request.body.decode("ascii")
        unquote_to_bytes(text).decode()
        form = parameters | parse_query(text)
    except UnicodeDecodeError:
        raise SqsProblem("MalformedInput", "The form is not URL-encoded.") from None
    name = form.get("Action", "")
    if name not in ACTIONS:
        raise SqsProblem("InvalidAction", f"{name!r:.100} is no action of SQS.")
    kind = ACTIONS[name].kind
    try:
        return name, msgspec.convert(query.parameters(name, form, kind), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise _invalid(exc) from None


def _decoded(name: str, body: bytes) -> Any:
    if len(body) > _COUNTED_BYTES:
        # An object takes many times the memory of the shortest text that makes one.
        quotes = body.count(b'"') - body.count(b'\\"')
        if quotes > _QUOTES_MAX or has_more_items(body, _ITEMS_MAX, 1):
            raise RequestTooLarge("there are too many parameters in the request")
    try:
        return _decoders[name].decode(body or b"{}")
    except msgspec.ValidationError as exc:
        raise _invalid(exc) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SqsProblem("MalformedInput", f"The body is not JSON: {exc}") from None


def _invalid(exc: msgspec.ValidationError) -> SqsProblem:
    text = str(exc)
    parameter = text.partition("missing required field `")[2].partition("`")[0]
    return missing(parameter) if parameter else SqsProblem("InvalidParameterValue", text)


def _answered(name: str, result: dict[str, Any] | None, *, is_form: bool) -> Answer:
    id_ = uuid_text(next(_request_ids))
    headers = (("x-amzn-requestid", id_),)
    if is_form:
        return Answer(200, XML_TYPE, query.answer_xml(name, result, id_), headers)
    return Answer(200, JSON_TYPE, _encoder.encode(result or {}), headers)


def _refused(problem: SqsProblem, request: Request) -> Answer:
    id_ = uuid_text(next(_request_ids))
    headers = [("x-amzn-requestid", id_)]
    if problem.status == 503:
        headers.append(("retry-after", "1"))
    if request.content_type() == _FORM_TYPE:
        body, kind = query.error_xml(problem, id_), XML_TYPE
    else:
        shape = {"__type": _SHAPE_PREFIX + problem.shape, "message": _sendable(str(problem))}
        body, kind = _encoder.encode(shape), JSON_TYPE
        headers.append(("x-amzn-query-error", f"{problem.code};{problem.fault}"))
    return Answer(problem.status, kind, body, tuple(headers), problem.code)


def _problem_of_answer(answer: Answer) -> SqsProblem:
    """What went wrong inside, without more than may be told."""
    told = msgspec.json.decode(answer.body)
    shape = "ServiceUnavailable" if answer.status == 503 else "InternalError"
    return SqsProblem(shape, told.get("detail", ""))


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
