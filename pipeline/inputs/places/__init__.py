"""Where inputs lie: folders, patterns, URLs and datasets of the hub."""
