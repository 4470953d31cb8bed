"""State in the process itself: nothing to install, gone with it."""
