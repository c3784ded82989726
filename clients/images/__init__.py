"""From files to pixels."""
