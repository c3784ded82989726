"""Classifies hundreds of millions of pictures without a server, divided into parts."""
