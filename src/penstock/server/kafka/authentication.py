"""SASL with the mechanism PLAIN: the user is a namespace, the password an API key.

An empty user, or none with a server that asks for no key, means the default namespace.
"""

from __future__ import annotations

from datetime import timedelta

from penstock.errors import InvalidInput, PenstockError
from penstock.model.names import DEFAULT_NAMESPACE, topic_name
from penstock.server.gate import check_right
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code
from penstock.server.kafka.messages import Answer

_MECHANISM = "PLAIN"
_FOR_EVER = timedelta(0)


def handshake(call: KafkaCall) -> Answer:
    agreed = call.body.mechanism == _MECHANISM
    call.session.mechanism_agreed = agreed and call.version > 0
    code = Code.NONE if agreed else Code.UNSUPPORTED_SASL_MECHANISM
    if agreed and not call.version:  # what follows would be no requests, but bytes of SASL
        code = Code.UNSUPPORTED_VERSION
    return Answer(error_code=code, mechanisms=[_MECHANISM])


def authenticate(call: KafkaCall) -> Answer:
    session = call.session
    code, said = Code.NONE, None
    if not session.mechanism_agreed:
        code, said = Code.ILLEGAL_SASL_STATE, "SaslHandshake comes first"
    else:
        try:
            _authenticate(call)
        except PenstockError as exc:
            code, said = Code.SASL_AUTHENTICATION_FAILED, str(exc)
    return Answer(error_code=code, error_message=said, auth_bytes=b"", session_lifetime=_FOR_EVER)


def _authenticate(call: KafkaCall) -> None:
    try:
        _, user, password = call.body.auth_bytes.decode().split("\0")
    except ValueError:
        raise InvalidInput("this is no message of SASL PLAIN") from None
    namespace = topic_name("any", user or DEFAULT_NAMESPACE).namespace
    key = call.door.gate.identify(password or None)
    check_right(key, "describe", namespace)
    session = call.session
    session.key, session.namespace, session.is_authenticated = key, namespace, True
