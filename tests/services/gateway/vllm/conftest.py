"""The protocol's messages are an extra: without them there is nothing to test here."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("smg_grpc_proto") else ["test_*.py"]
