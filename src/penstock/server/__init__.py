"""The doors that listen: HTTP, with keys, limits and metrics."""
