"""Clients: one API, embedded or remote, sync and async."""
