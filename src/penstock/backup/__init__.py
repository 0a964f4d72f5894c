"""Backups of a data folder, also while a broker works on it; and how to get one back."""
