"""Penstock beside its peers: `python -m bench`. See README.md in this folder."""
