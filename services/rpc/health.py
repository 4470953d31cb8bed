"""Names that processes answer for under grpc.health.v1, beside "" (the process) and its services."""

STATE = "octavo.state"
"""The state store, where a process has one: without it the process serves, but less of it survives."""

STANDBY = "octavo.standby"
"""SERVING where a KV manager serves, or stands by while another does."""
