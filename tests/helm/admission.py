"""Evaluates admission policies of Kubernetes for a pod, without a cluster: CEL by Google's implementation, and what Kubernetes adds to it.

Kubernetes adds the types `Object` and `JSONPatch`, and the function `indexOf` of lists. Typed objects become maps here, each with its
type, and every type and field is looked up in the schema of the pod, as the API server does. What this module does not have, such as
authorizers, fails as unknown to CEL."""

import copy
import functools
import json
import re

import jsonpatch
import kubernetes_validate
from cel_expr_python import cel
from support import KUBERNETES_OF_POLICIES

# Of an object's type, in its map. No field of Kubernetes begins with it.
TYPE = "$type"
TOKEN = re.compile(r"""\s+ | //[^\n]* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | (?:Object|JSONPatch)(?:\.\w+)*\s*\{ | \w+ | .""", re.VERBOSE | re.DOTALL)
FUNCTIONS = [
    cel.FunctionDecl("indexOf", [cel.Overload(
        id="list_index_of", return_type=cel.Type.INT, parameters=[cel.Type.List(cel.Type.DYN), cel.Type.STRING], is_member=True,
        impl=lambda items, item: items.index(item) if item in items else -1)]),
    cel.FunctionDecl("join", [cel.Overload(
        id="list_join", return_type=cel.Type.STRING, parameters=[cel.Type.List(cel.Type.DYN), cel.Type.STRING], is_member=True,
        impl=lambda items, separator: separator.join(items))]),
]
VARIABLES = dict.fromkeys(("object", "params", "variables", "namespaceObject", "request"), cel.Type.DYN)


class Invalid(Exception):
    """An expression that does not compile."""


class Failed(Exception):
    """An expression whose evaluation fails for a pod."""


class Denied(Exception):
    """A pod that a policy rejects; the text is the message."""


@functools.cache
def environment():
    return cel.NewEnv(variables=VARIABLES, functions=FUNCTIONS)


@functools.cache
def compiled(expression):
    try:
        return environment().compile(without_types(expression))
    except RuntimeError as error:
        raise Invalid(f"{error}\n{expression}") from error


def evaluate(expression, **variables):
    """Returns the value of an expression."""
    value = compiled(expression).eval(data=variables)
    if value.type() == cel.Type.ERROR:
        raise Failed(f"{value.plain_value()}\n{expression}")
    return value.plain_value()


def without_types(expression):
    """Returns an expression with a map in place of each typed object: `T{a: 1}` becomes `{"$type": "T", "a": 1}`."""
    written, braces, is_field = [], [], False
    for token in TOKEN.findall(expression):
        if token.startswith("//"):
            continue
        if token.startswith(("Object", "JSONPatch")) and token.endswith("{"):
            braces.append(token)
            written.append(f'{{"{TYPE}": "{token[:-1].strip()}", ')
            is_field = True
            continue
        if token in "{[(":
            braces.append(token)
        elif token in "}])":
            braces.pop()
        if is_field and re.fullmatch(r"\w+", token):
            token = f'"{token}"'
        if token.strip():
            is_field = token == "," and bool(braces) and braces[-1].startswith(("Object", "JSONPatch"))
        written.append(token)
    return "".join(written)


class Policy:
    """A MutatingAdmissionPolicy and a ValidatingAdmissionPolicy with their parameters."""

    def __init__(self, mutating, validating, parameters):
        self.mutating, self.validating, self.parameters = mutating["spec"], validating["spec"], parameters

    def admit(self, pod):
        """Returns the pod as it is stored, or fails with what rejects it."""
        pod = defaulted(pod)
        if all(is_selected(spec, pod) for spec in (self.mutating, self.validating)):
            pod = self.mutate(pod)
            self.validate(pod)
        return pod

    def mutate(self, pod):
        scope = {"object": pod, "params": self.parameters}
        if not all(evaluate(condition["expression"], **scope) for condition in self.mutating.get("matchConditions", [])):
            return pod
        scope["variables"] = values(self.mutating, scope)
        for mutation in self.mutating["mutations"]:
            assert mutation["patchType"] == "JSONPatch"
            operations = [untyped_operation(o) for o in evaluate(mutation["jsonPatch"]["expression"], **scope)]
            pod = jsonpatch.apply_patch(pod, operations)
        return defaulted(pod)

    def validate(self, pod):
        scope = {"object": pod, "params": self.parameters}
        scope["variables"] = values(self.validating, scope)
        for validation in self.validating["validations"]:
            if not evaluate(validation["expression"], **scope):
                raise Denied(evaluate(validation["messageExpression"], **scope))


def values(spec, scope):
    """Returns the values of the variables, each of which may use those before it. As in the API server, one that fails does so only for
    an expression that uses it: CEL reports that the name is missing."""
    found = {}
    for variable in spec["variables"]:
        try:
            found[variable["name"]] = evaluate(variable["expression"], variables=found, **scope)
        except Failed:
            continue
    return found


def is_selected(spec, pod):
    labels = pod["metadata"].get("labels", {})
    return spec["matchConstraints"]["objectSelector"]["matchLabels"].items() <= labels.items()


def defaulted(pod):
    """Returns the pod with the defaults of the API server on which policies may rely."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in spec["containers"] + spec.get("initContainers", []):
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
    return pod


def untyped_operation(operation):
    assert operation.pop(TYPE) == "JSONPatch" and operation.keys() <= {"op", "path", "from", "value"}, operation
    if "value" in operation:
        operation["value"] = untyped(operation["value"], operation["path"])
    return operation


def untyped(value, path):
    """Returns a value without types, after a check that each is the type of its place, and has the field."""
    if isinstance(value, list):
        return [untyped(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    expected = ".".join(["Object", *(part for part in path.split("/") if part and part != "-" and not part.isdigit())])
    schema = schema_of(expected)
    if TYPE not in value:
        assert "additionalProperties" in schema, f"{path}: a map in place of {expected}"
        # The API server allows values of one type only.
        assert len({type(item) for item in value.values()}) <= 1, f"{path}: {value}"
        return value
    assert value.pop(TYPE) == expected, f"{path}: another type than {expected}"
    unknown = value.keys() - schema["properties"].keys()
    assert not unknown, f"{expected} has no field {unknown}"
    return {name: untyped(item, f"{path}/{name}") for name, item in value.items()}


@functools.cache
def schema_of(type_name):
    """Returns the schema of a typed object: that of the pod at this path."""
    schema = pod_schemas()["io.k8s.api.core.v1.Pod"]
    for name in type_name.split(".")[1:]:
        schema = resolved(schema["properties"][name])
    return schema


def resolved(schema):
    if "$ref" in schema:
        return resolved(pod_schemas()[schema["$ref"].rsplit("/", 1)[-1]])
    return resolved(schema["items"]) if "items" in schema else schema


@functools.cache
def pod_schemas():
    directory = kubernetes_validate.utils.importlib_resources.files("kubernetes_validate") / "kubernetes-json-schema"
    return json.loads((directory / f"v{KUBERNETES_OF_POLICIES}.0-local" / "_definitions.json").read_text())["$defs"]
