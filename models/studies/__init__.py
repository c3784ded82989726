"""The published studies: trainings, derived figures, tables and plots."""
