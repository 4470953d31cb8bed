"""Blocks, where they lie and how they move, and how many there is memory for."""
