"""What goes over the wire: the structs of requests and answers, for the server and its client."""
