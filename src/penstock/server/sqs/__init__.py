"""The SQS API: queues for programs that were written for Amazon's."""
