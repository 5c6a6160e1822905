"""`make bench`: tokenweir against an empty server and against bare Envoy, in one run."""
