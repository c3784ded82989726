"""What the report is made of: the results that are there, an answer to each question, a page, two files compared."""
