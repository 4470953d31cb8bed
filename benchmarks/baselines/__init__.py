"""What the paper compares itself with."""
