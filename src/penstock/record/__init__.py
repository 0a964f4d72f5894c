"""Messages to bytes and back: batches as Arrow columns, and the frames that hold them. No I/O."""
