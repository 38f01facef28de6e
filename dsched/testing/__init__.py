"""Run the real code in simulated time, on a simulated network, repeatably from a seed.

Start at `dsched.testing.world.SimWorld`.
"""
