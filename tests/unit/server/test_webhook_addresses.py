"""Which addresses webhooks may be posted to."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.server.webhooks.addresses import AddressRefused, AddressRules

HIDDEN = [
    "127.0.0.1",
    "::1",
    "::",
    "0.0.0.0",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo of 127.0.0.1
    "169.254.169.254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00:ec2::254",
    "10.1.2.3",
    "172.31.255.255",
    "192.168.0.1",
    "100.64.0.1",
    "224.0.0.1",
    "ff02::1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "198.18.0.1",
    "2001:db8::1",
    "0.1.2.3",
    "not an address",
]


@pytest.mark.parametrize("address", HIDDEN)
@pytest.mark.parametrize("private", [False, True])
def test_what_is_not_public_is_refused(address: str, private: bool) -> None:
    with pytest.raises(AddressRefused):
        AddressRules("").check(address, 443, private)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"]
)
def test_what_is_public_is_allowed(address: str) -> None:
    AddressRules("").check(address, 443, False)


def test_a_private_network_has_to_be_allowed_and_asked_for() -> None:
    rules = AddressRules("10.0.0.0/8, fd00::/8")
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        rules.check(address, 443, True)
        with pytest.raises(AddressRefused):
            rules.check(address, 443, False)
    with pytest.raises(AddressRefused):
        rules.check("192.168.0.1", 443, True)


def test_the_server_itself_is_refused_even_where_loopback_is_allowed() -> None:
    rules = AddressRules("127.0.0.0/8,::1/128", own_ports=[8080, 9090])
    rules.check("127.0.0.1", 9000, False)
    for address in ("127.0.0.1", "::1"):
        with pytest.raises(AddressRefused):
            rules.check(address, 8080, False)
        with pytest.raises(AddressRefused):
            rules.check(address, 9090, False)


def test_a_wrong_network_is_told() -> None:
    with pytest.raises(InvalidInput, match="webhook_networks"):
        AddressRules("10.0.0.0/33")
