"""What goes on in the stack, for people who look at it."""
