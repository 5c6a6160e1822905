"""Asks a server for its health, as Envoy does."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def is_serving(address: str, *, timeout_seconds: float = 2.0) -> bool:
    """The word of the server at ``HOST:PORT`` or ``unix:/path``: Redis has answered and the scripts
    are loaded. Blocks for up to the time-out; never raises."""
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
