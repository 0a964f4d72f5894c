"""Messages from elsewhere, and out of Penstock: LedgerQ, GoQueue, Kafka, JSON lines, Parquet."""
