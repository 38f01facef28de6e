"""Remembers: one interface, and its implementations in memory, in SQLite, and in MySQL or MariaDB."""
