"""Traces: one for each request, through all three processes, sent out over OTLP."""
