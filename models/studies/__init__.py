"""The literature's studies: each a list of trainings, derived figures, a table and plots."""
