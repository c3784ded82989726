"""The report: available results, an answer to each question, a page, and the comparison of two files."""
