"""Guided decoding: which tokens may come next, so that an answer can still become what was asked for."""
