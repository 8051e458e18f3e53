"""The python runtime behind bootstrap.py; not an interface for functions (that is the module `rekindle`)."""
