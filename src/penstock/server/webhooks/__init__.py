"""Messages posted to URLs: signed, retried, and never to an address that is not public."""
