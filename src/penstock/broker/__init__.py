"""The broker: log, delivery and groups joined. `broker.py` is the one facade."""
