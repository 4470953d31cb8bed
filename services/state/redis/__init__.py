"""State in Redis: commands of 6.2 only. `docs/state.md` describes every key."""
