"""The soak: a long run with mixed traffic, watched for whatever grows or stays behind."""
