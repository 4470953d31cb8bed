"""The gateway's process."""
