"""The ways to run a handler: in a thread of the worker's own, or as a coroutine in the reactor."""
