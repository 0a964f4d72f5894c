"""Pure: what happens to messages, which of them are traced, how a life is put together."""
