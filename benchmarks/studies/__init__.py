"""Studies of the published claims and searches of networks: trainings, their results, tables and plots."""
