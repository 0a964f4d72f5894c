"""The client of a broker in another process: the same API as embedded, over HTTP."""
