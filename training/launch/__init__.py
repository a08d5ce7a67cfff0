"""Starting on many devices: what the launcher set for each rank, which rank is missing, what is wrong with a machine.

`environment` reads the launcher's variables; `rank_check` has every rank report itself before anything can hang;
`doctor` examines one machine, `links` the connections between ranks; `recipes` holds configurations for accelerate and
scripts for Slurm. Nothing here imports torch before it is needed, and `doctor` runs without it.
"""
