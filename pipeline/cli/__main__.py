"""`python -m packtrain.pipeline.cli`, as torchrun and accelerate start it."""

from .main import main

if __name__ == "__main__":  # all modules of the package may be imported
    main()
