"""Starting on many devices: what the launcher set for each rank, which rank is missing, what is wrong with a machine.

`environment` reads the launcher's variables; `rank_check` has every rank report itself before anything can hang, in the
words of `rank_report`; `links` checks the connections between ranks; `doctor` examines one machine and runs without
torch; `orphans` ends workers whose launcher was killed; `recipes` holds configurations for accelerate and scripts for
Slurm. Nothing here imports torch before it is needed.
"""
