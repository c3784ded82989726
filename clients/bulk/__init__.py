"""Classifies hundreds of millions of pictures without a server, part by part."""
