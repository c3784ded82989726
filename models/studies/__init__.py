"""The literature's studies: each a list of trainings, derived figures, a table and plots.

In: a dataset and how much of a study to run. Out: one JSON file, from which alone the table and the plots are made.
"""
