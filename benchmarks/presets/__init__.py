"""What a command measures with --preset NAME: one module a preset, with its own options."""
