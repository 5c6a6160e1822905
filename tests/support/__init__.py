"""What tests of several kinds share: real servers, and small tools."""
