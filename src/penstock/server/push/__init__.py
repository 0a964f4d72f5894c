"""Messages pushed over WebSockets, as fast as their readers give credit."""
