"""Several supervised servers behind one proxy on one machine."""
