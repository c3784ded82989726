"""The evidence of the pages: studies of the published claims, searches of networks; tables and plots."""
