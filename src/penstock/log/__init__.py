"""Bytes to disk and back: logs of segments, the engines that keep them, and who only reads."""
