"""Asks a server for its health, as Envoy does."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


async def is_serving(address: str, *, timeout_seconds: float = 1.0) -> bool:
    """True when the server at ``HOST:PORT`` or ``unix:/path`` says SERVING. Never raises."""
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
