"""The model and its kernels: takes a step batch, writes keys and values into blocks, returns tokens."""

import os

# OpenMP threads must not spin while they wait: on a busy host that makes a step up to 30 times slower. The runtime
# reads this once, when torch is first imported, so it is set here, before any module of the package can import torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
