"""Starting on many devices: what each rank was told, who is there, and what is wrong with the machine.

`environment` reads what a launcher said; `rollcall` has every rank report itself before anything can hang; `doctor`
examines one machine, `wires` the connections between ranks; `recipes` hands out configurations for accelerate and
scripts for Slurm. Nothing here imports torch before it is needed, and `doctor` runs without it.
"""
