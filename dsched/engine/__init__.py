"""Decides: one event in, row changes and effects out. Pure and synchronous."""
