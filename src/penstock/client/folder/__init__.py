"""One data folder, many processes: its owner listens on a socket, the others are its clients."""
