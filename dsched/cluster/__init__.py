"""Decides who leads."""
