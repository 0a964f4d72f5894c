"""The broker: log, delivery and groups joined. `api.py` is the only way in."""
