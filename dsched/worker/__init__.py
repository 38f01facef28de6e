"""How work is done: handlers, slots, executors, and the session with the core. Never imports `core` or `engine`."""
