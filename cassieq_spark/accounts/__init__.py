"""Accounts: who may do what, over HTTP. It needs the extra ``accounts``."""
