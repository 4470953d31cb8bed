"""The KV manager's process."""
