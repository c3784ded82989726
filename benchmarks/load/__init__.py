"""Load on a server: what is asked, who asks, and where the server is saturated."""
