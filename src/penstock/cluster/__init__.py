"""Logs in a cluster: shards, each a replicated stream that one node at a time writes to."""
