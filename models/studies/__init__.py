"""The studies of the literature: each a list of trainings, what is derived from them, a table and plots.

In: a dataset and how much of a study to run. Out: one JSON file, from which alone the table and the plots are made.
"""
