"""An example becomes text that knows what each part of it is."""
