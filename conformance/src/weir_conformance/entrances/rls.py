"""The entrance of Envoy's rate limit service: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.

A request becomes one descriptor with the entry `key`, in the domain `conformance`; a limit for one path has the entry
`path` in addition.
"""

from __future__ import annotations

import math
import time
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from weir_conformance.reply import Probe, Reply

DOMAIN = "conformance"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK = 1

_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, list[tuple[str, int, int, str, bool]]] = {
    "Entry": [("key", 1, _FIELD.TYPE_STRING, "", False), ("value", 2, _FIELD.TYPE_STRING, "", False)],
    "Descriptor": [("entries", 1, _FIELD.TYPE_MESSAGE, "Entry", True)],
    "Request": [
        ("domain", 1, _FIELD.TYPE_STRING, "", False),
        ("descriptors", 2, _FIELD.TYPE_MESSAGE, "Descriptor", True),
        ("hits_addend", 3, _FIELD.TYPE_UINT32, "", False),
    ],
    "Duration": [("seconds", 1, _FIELD.TYPE_INT64, "", False), ("nanos", 2, _FIELD.TYPE_INT32, "", False)],
    "RateLimit": [("requests_per_unit", 1, _FIELD.TYPE_UINT32, "", False)],
    "Status": [
        ("code", 1, _FIELD.TYPE_INT32, "", False),
        ("current_limit", 2, _FIELD.TYPE_MESSAGE, "RateLimit", False),
        ("limit_remaining", 3, _FIELD.TYPE_UINT32, "", False),
        ("duration_until_reset", 4, _FIELD.TYPE_MESSAGE, "Duration", False),
    ],
    "HeaderValue": [("key", 1, _FIELD.TYPE_STRING, "", False), ("value", 2, _FIELD.TYPE_STRING, "", False)],
    "Response": [
        ("overall_code", 1, _FIELD.TYPE_INT32, "", False),
        ("statuses", 2, _FIELD.TYPE_MESSAGE, "Status", True),
        ("response_headers_to_add", 3, _FIELD.TYPE_MESSAGE, "HeaderValue", True),
    ],
}
"""The fields that are used, with the numbers of Envoy's `rls.proto`. Others are skipped."""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="conformance_rls.proto", package="conformance", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            type_name = f".conformance.{of}" if of else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"conformance.{name}")) for name in _MESSAGES
    }


_CLASSES = _build()


class RlsEntrance:
    """A client of a rate limit service."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.unary_unary(
            METHOD,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_CLASSES["Response"].FromString,
        )

    def send(self, probe: Probe) -> Reply:
        request = _CLASSES["Request"](domain=DOMAIN, hits_addend=1)
        descriptor = request.descriptors.add()
        descriptor.entries.add(key="key", value=probe.key or "none")
        if probe.path != "/":
            descriptor.entries.add(key="path", value=probe.path)
        sent = time.monotonic()
        response = self._call(request, timeout=10, wait_for_ready=True)
        received = time.monotonic()
        admitted = response.overall_code == OK
        headers = {line.key.lower(): line.value for line in response.response_headers_to_add}
        for status in response.statuses:
            until = status.duration_until_reset
            if status.HasField("duration_until_reset") and not admitted and status.code != OK:
                # What Envoy's filter derives the header from.
                headers.setdefault("retry-after", str(math.ceil(until.seconds + until.nanos / 1e9)))
        return Reply(200 if admitted else 429, admitted, sent, received, headers)

    def close(self) -> None:
        self._channel.close()
