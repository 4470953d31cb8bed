"""What a gateway tells Prometheus: of its own calls, and of the stack behind it."""
