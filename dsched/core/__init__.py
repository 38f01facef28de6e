"""Who does it: the journal commits, the service acts."""
