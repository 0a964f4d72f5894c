"""The link to a server over HTTP."""
