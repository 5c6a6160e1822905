"""Fuzzing of both readers and the token counters: ``make fuzz``, and in short in the tests."""
