"""Starting on many devices: which rank is missing (`ranks`), what is wrong with a machine (`doctor`), configurations
for accelerate and scripts for Slurm (`recipes`). Nothing here imports torch before it is needed.
"""
