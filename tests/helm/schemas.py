"""Schemas of Kubernetes objects: those of Kubernetes itself, and the ones in crds/ for custom resources."""

import json
import pathlib

import jsonschema
import kubernetes_validate
from support import KUBERNETES, KUBERNETES_OF_POLICIES

CRDS = pathlib.Path(__file__).resolve().parent / "crds"
CUSTOM_GROUPS = {
    "monitoring.coreos.com", "networking.istio.io", "gateway.networking.k8s.io", "gateway.envoyproxy.io",
}


def validate_strictly(o):
    """Validates an object by its schema, and rejects fields that the schema does not have."""
    if o["apiVersion"].split("/")[0] in CUSTOM_GROUPS:
        jsonschema.validate(o, json.loads((CRDS / f"{o['kind']}.json").read_text()))
    else:
        is_policy = o["kind"].startswith(("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"))
        kubernetes_validate.validate(o, KUBERNETES_OF_POLICIES if is_policy else KUBERNETES, strict=True)
