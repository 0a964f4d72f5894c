"""The HTTP door: requests, their bodies, routes and answers."""
