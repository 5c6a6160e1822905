"""Bytes to facts: request facts and usage parsers, one file per wire format. No input or output."""
