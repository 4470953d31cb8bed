"""Shared state: one small interface, held in the process or in Redis."""
