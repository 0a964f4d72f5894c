"""The Kafka protocol: a listener of its own, on the broker of the server."""
