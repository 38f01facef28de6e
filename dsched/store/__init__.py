"""Remembers: one interface, and its implementations in memory, in SQLite and, later, in MySQL."""
