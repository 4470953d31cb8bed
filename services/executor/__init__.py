"""The executor's process."""
