"""The gateway's HTTP port."""
