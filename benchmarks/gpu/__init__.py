"""The kernels for GPUs, and the executor that runs on them: compiled, checked and timed by one short script."""
