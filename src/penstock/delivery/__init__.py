"""Who gets which message when: queue mode without I/O, threads or a clock of its own."""
