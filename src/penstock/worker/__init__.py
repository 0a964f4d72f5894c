"""A worker app: functions that are called with the messages of topics."""
