"""A node of a cluster behind HTTP: what it owns it answers, the rest it forwards to the owner."""
