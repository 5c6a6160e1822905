"""What runs beside the request path: the reaper, the ledger writer."""
