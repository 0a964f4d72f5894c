"""`penstock transaction` on a folder and on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.errors import TransactionRefused
from tests.integration.cli.shell import Shell


def test_transactions_are_listed_and_shown(folder: Shell, tmp_path: Path) -> None:
    folder("topic", "create", "mail")
    with penstock.connect(tmp_path / "data") as ps:
        with ps.transaction(producer="p") as tx:
            tx.publish_batch("mail", [b"1", b"2"])
            tx.publish("mail", b"3", delay="1h")
        refused = ps.transaction()
        with pytest.raises(TransactionRefused), refused:
            refused.publish("nowhere", b"x")
        assert ps.describe_transaction(refused.id).state == "refused"
    (row,) = folder("transaction", "list").lines[1:]
    assert row.split()[0] == tx.id
    assert "committed" in row
    shown = folder("transaction", "show", tx.id)
    assert b"p, epoch 1" in shown.out
    assert b"from offset 0" in shown.out
    assert folder("transaction", "show", tx.id, "--json").json["number"] == 1
    folder("transaction", "show", refused.id, code=3)
