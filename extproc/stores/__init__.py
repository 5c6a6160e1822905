"""Redis and SQL: the only importer of redis and sqlalchemy."""
