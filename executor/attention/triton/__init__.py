"""Attention on a GPU, in Triton: the kernels, how they are launched, and the backend that a decoder sees.

Nothing outside this package imports `triton`, and nothing imports this package where there is no Triton.
"""
