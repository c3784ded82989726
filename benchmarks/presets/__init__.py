"""The commands behind `--preset NAME`: the module NAME holds the preset's command and its options."""
