"""Bounds of histograms of steps, which several services keep."""

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Those that dashboards made for vLLM are drawn with; `StepTokens` of the contracts tells them, too."""

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
