"""The commands, a few in a file, and what they show in a terminal. No other folder imports this one."""
