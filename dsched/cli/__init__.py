"""The command line `dsched`."""
