"""The commands, one file each, and what they show in a terminal. No other folder imports this one."""
