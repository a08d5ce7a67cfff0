"""Opens finished datasets: manifest, run notes, tokens as text, checks."""
