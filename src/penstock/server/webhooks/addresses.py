"""Where webhooks may be posted: to public addresses, whatever a name or a number looks like.

An address is checked when it is connected to, so a name that resolves to another address the
second time gains nothing. An IPv6 address that stands for an IPv4 address is that one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from penstock.errors import InvalidInput

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpNetwork: TypeAlias = IPv4Network | IPv6Network

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")
_PRIVATE = [
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]
"""Of others' machines: reachable if the server's configuration and the webhook both say so."""


class AddressRefused(Exception):
    """A webhook must not be posted to this address."""


class AddressRules:
    """Which addresses may be connected to."""

    def __init__(self, networks: str, own_ports: Iterable[int] = ()) -> None:
        """`networks` as in the configuration; nothing is posted to the server's own ports."""
        self._allowed: list[IpNetwork] = []
        self.own_ports = set(own_ports)
        for text in filter(None, (each.strip() for each in networks.split(","))):
            try:
                self._allowed.append(ipaddress.ip_network(text))
            except ValueError as exc:
                raise InvalidInput(f"webhook_networks: {exc}") from None

    def check(self, host: str, port: int, private: bool) -> None:
        """Raise AddressRefused. `private`: whether the webhook wants private addresses."""
        try:
            address = meant(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            raise AddressRefused(f"{host!r:.100} is not an address") from None
        if port in self.own_ports and (address.is_loopback or address.is_unspecified):
            raise AddressRefused("a webhook must not be posted to this server itself")
        if _is_public(address):
            return
        listed = any(
            address.version == network.version and address in network for network in self._allowed
        )
        asked_for = private or not any(
            address.version == network.version and address in network for network in _PRIVATE
        )
        if not listed or not asked_for:
            raise AddressRefused(
                f"{address} is not a public address; webhook_networks of the server's "
                "configuration, and `private` of the webhook, can allow it"
            )


def meant(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    number = int(address)
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(number & 0xFFFFFFFF)
    if address in _COMPATIBLE and number > 1:
        return IPv4Address(number & 0xFFFFFFFF)
    return address


def _is_public(address: IpAddress) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not address.is_link_local
        and not getattr(address, "is_site_local", False)
    )
