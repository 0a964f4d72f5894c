"""Account ids for namespaces, and the URLs and ARNs that name queues. Regions come as they are."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import InvalidInput
from penstock.model.names import DEFAULT_NAMESPACE, TopicName, topic_name
from penstock.server.sqs.problems import SqsProblem, invalid, no_queue

DEFAULT_ACCOUNT = "000000000000"
_URLS_MAX, _URL_LENGTH_MAX = 4096, 512  # that are kept in memory
_ACCOUNT = re.compile(r"[0-9]{12}")
_PATH = re.compile(r"/([0-9]{12})/([A-Za-z0-9._-]{1,249})")
_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]{1,64}:([0-9]{12}):([A-Za-z0-9._-]{1,249})")


def is_queue_path(path: str) -> bool:
    return path in ("", "/") or _PATH.fullmatch(path) is not None


class Accounts:
    """Which account stands for which namespace, as `sqs_accounts` says."""

    def __init__(self, setting: str) -> None:
        """`shop=111122223333, lab=444455556666`; the default namespace has 000000000000 unless it
        is named, too."""
        self._accounts = {DEFAULT_NAMESPACE: DEFAULT_ACCOUNT}
        for part in setting.split(","):
            if not part.strip():
                continue
            namespace, _, account = (each.strip() for each in part.partition("="))
            topic_name("any", namespace)
            if not _ACCOUNT.fullmatch(account):
                raise InvalidInput(
                    f"sqs_accounts: {part.strip()!r:.100} is not a namespace and its account, such "
                    "as shop=111122223333"
                )
            self._accounts[namespace] = account
        self._queues: dict[str, TopicName] = {}
        """Of the URLs that were asked for lately."""
        self._namespaces = {account: name for name, account in self._accounts.items()}
        if len(self._namespaces) < len(self._accounts):
            raise InvalidInput("sqs_accounts: an account stands for one namespace")

    def account(self, namespace: str) -> str:
        account = self._accounts.get(namespace)
        if account is None:
            raise SqsProblem(
                "AccessDeniedException",
                f"Namespace {namespace!r} has no account; the setting sqs_accounts gives it one.",
            )
        return account

    def namespace(self, account: str) -> str:
        namespace = self._namespaces.get(account)
        if namespace is None:
            raise no_queue()
        return namespace

    def of_url(self, url: str) -> TopicName:
        """The queue of a URL, whatever its host, or of a path."""
        known = self._queues.get(url)
        if known is not None:
            return known
        found = _PATH.fullmatch("/" + "/".join(url.rstrip("/").split("/")[-2:]))
        if found is None:
            raise SqsProblem("InvalidAddress", f"The address {url!r:.200} is not that of a queue.")
        name = self._name(found[1], found[2])
        if len(url) <= _URL_LENGTH_MAX:
            if len(self._queues) >= _URLS_MAX:
                self._queues.clear()
            self._queues[url] = name
        return name

    def of_arn(self, arn: str, parameter: str) -> TopicName:
        found = _ARN.fullmatch(arn) if isinstance(arn, str) else None
        if found is None:
            raise invalid(parameter, arn, "It is not the ARN of a queue.")
        return self._name(found[1], found[2])

    def _name(self, account: str, queue: str) -> TopicName:
        try:
            return topic_name(queue, self.namespace(account))
        except InvalidInput:
            raise no_queue() from None


class Addresses(NamedTuple):
    """How queues are named in the answers to one request."""

    accounts: Accounts
    base_url: str
    """Where the request was sent to, without a path."""
    region: str

    def url(self, name: TopicName) -> str:
        return f"{self.base_url}/{self.accounts.account(name.namespace)}/{name.topic}"

    def arn(self, name: TopicName) -> str:
        return f"arn:aws:sqs:{self.region}:{self.accounts.account(name.namespace)}:{name.topic}"
