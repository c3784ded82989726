"""What several folders read and write in one form. Imports no other folder."""
