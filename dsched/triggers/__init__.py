"""When: interval and none; arithmetic on instants. Pure."""
