"""The transactional outbox: messages that are published if, and only if, a database commits.

`publish` inserts a row through the caller's own connection, in the caller's own transaction: what
is rolled back was never sent. A `Relay` (`penstock outbox relay`) publishes the rows and deletes
them. `first_time` is the other end: it notes in the consumer's transaction that a message was
worked on.

    with connection:                                  # sqlite3, psycopg, pymysql, SQLAlchemy ...
        connection.execute("INSERT INTO orders ...")
        outbox.publish(connection, "orders", order, key=order.customer)
"""

from penstock.outbox.inbox import create_inbox, first_time
from penstock.outbox.relay import Relay, RelayStatus
from penstock.outbox.table import create_table, ddl, publish

__all__ = [
    "Relay",
    "RelayStatus",
    "create_inbox",
    "create_table",
    "ddl",
    "first_time",
    "publish",
]
