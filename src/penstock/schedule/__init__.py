"""Pure: when recurring schedules fire, what is caught up with, and what a broker knows of them."""
