"""The console: a page that shows memory, queue and requests live, and the data behind it."""
