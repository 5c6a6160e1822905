"""The domain: values and rules. Imports the standard library only."""
