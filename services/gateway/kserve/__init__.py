"""KServe's open inference protocol, version 2, with Triton's streams: text in, text out, as tensors."""
