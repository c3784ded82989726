"""The report: results, sections, page; and the comparison of two files."""
