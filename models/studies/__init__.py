"""The literature's studies: each a list of trainings, derived figures, a table and plots.

Table and plots are made from the JSON file alone.
"""
