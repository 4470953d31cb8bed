"""The decoder in torch, on any device."""
