"""Shared by all tests."""

import os

import hypothesis

# OpenMP must not spin: with other processes on the same cores it costs up to 30 times. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


# No test fails because the machine is busy.
hypothesis.settings.register_profile("octavo", deadline=None)
hypothesis.settings.load_profile("octavo")
