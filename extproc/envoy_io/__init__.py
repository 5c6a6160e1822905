"""The conversations with Envoy: the only importer of grpc and Envoy protobufs."""
