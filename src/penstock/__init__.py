"""Penstock: a durable message queue and log in Python, with a data pipeline on Spark."""
