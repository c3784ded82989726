"""Pictures by the hundred million, without a server: a part in, a part out."""
