"""What goes over the wire: calls as HTTP requests, messages as Arrow streams, answers as JSON."""
