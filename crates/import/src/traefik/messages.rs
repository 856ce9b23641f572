//! The fields of Traefik's configuration that concern limits, and what becomes of them.
//!
//! The names are those of `pkg/config/dynamic/middlewares.go` and `http_config.go` in traefik/traefik, and of
//! `pkg/provider/kubernetes/crd/traefikio/v1alpha1`.

use super::super::ledger::Message;
use super::super::remark::Effect::{Differs, Looser, None as Same};

/// The dynamic configuration of the file provider.
pub(super) static FILE: Message = Message {
    name: "Traefik's dynamic configuration",
    read: &["http"],
    lost: &[("tcp", Looser, "limits of connections are not converted, as rules limit requests")],
    other: &["udp", "tls"],
};

/// `HTTPConfiguration`
pub(super) static HTTP: Message = Message {
    name: "http",
    read: &["routers", "middlewares"],
    lost: &[("models", Differs, "middlewares of entry points are not converted")],
    other: &["services", "serversTransports"],
};

/// `Router`
pub(super) static ROUTER: Message = Message {
    name: "a router",
    read: &["rule", "middlewares", "priority"],
    lost: &[
        ("entryPoints", Same, "the rules apply to all listeners: use `match: { listener: NAME }` for some"),
        ("ruleSyntax", Same, "rules are read in the syntax of v3; functions with several values, too"),
    ],
    other: &["service", "parentRefs", "tls", "observability"],
};

/// `IngressRouteSpec`
pub(super) static INGRESS_ROUTE: Message = Message {
    name: "IngressRoute",
    read: &["routes"],
    lost: &[(
        "entryPoints",
        Same,
        "the rules apply to all listeners: use `match: { listener: NAME }` for some",
    )],
    other: &["tls", "parentRefs", "ingressClassName"],
};

/// `Route`
pub(super) static ROUTE: Message = Message {
    name: "a route",
    read: &["match", "middlewares", "priority"],
    lost: &[("syntax", Same, "rules are read in the syntax of v3; functions with several values, too")],
    other: &["kind", "services", "observability"],
};

/// `MiddlewareRef`
pub(super) static REFERENCE: Message =
    Message { name: "a reference to a middleware", read: &["name", "namespace"], lost: &[], other: &[] };

/// `Middleware`
pub(super) static MIDDLEWARE: Message = Message {
    name: "a middleware",
    read: &["rateLimit", "inFlightReq", "chain"],
    lost: &[
        (
            "ipAllowList",
            Looser,
            "rejects other clients: use a rule with `except: { client_ip: … }` and `action: deny`",
        ),
        (
            "ipWhiteList",
            Looser,
            "rejects other clients: use a rule with `except: { client_ip: … }` and `action: deny`",
        ),
        ("circuitBreaker", Looser, "rejects requests while the service fails: use `elastic`, or `upstream`"),
        ("buffering", Looser, "rejects bodies above a size"),
    ],
    other: &[
        "addPrefix",
        "stripPrefix",
        "stripPrefixRegex",
        "replacePath",
        "replacePathRegex",
        "headers",
        "encodedCharacters",
        "errors",
        "redirectRegex",
        "redirectScheme",
        "basicAuth",
        "digestAuth",
        "forwardAuth",
        "compress",
        "passTLSClientCert",
        "retry",
        "contentType",
        "grpcWeb",
        "plugin",
    ],
};

/// `Chain`
pub(super) static CHAIN: Message = Message { name: "chain", read: &["middlewares"], lost: &[], other: &[] };

/// `RateLimit`
pub(super) static RATE_LIMIT: Message = Message {
    name: "rateLimit",
    read: &["average", "period", "burst", "sourceCriterion"],
    lost: &[],
    other: &["redis"],
};

/// `InFlightReq`
pub(super) static IN_FLIGHT: Message =
    Message { name: "inFlightReq", read: &["amount", "sourceCriterion"], lost: &[], other: &[] };

/// `SourceCriterion`
pub(super) static CRITERION: Message = Message {
    name: "sourceCriterion",
    read: &["ipStrategy", "requestHeaderName", "requestHost"],
    lost: &[],
    other: &[],
};

/// `IPStrategy`
pub(super) static IP_STRATEGY: Message = Message {
    name: "ipStrategy",
    read: &["ipv6Subnet"],
    lost: &[
        (
            "depth",
            Differs,
            "Traefik takes the address from X-Forwarded-For by its place: list the proxies in `client_ip.trusted_proxies`",
        ),
        (
            "excludedIPs",
            Differs,
            "Traefik takes the last other address of X-Forwarded-For: add these to `client_ip.trusted_proxies`",
        ),
    ],
    other: &[],
};

/// The parts of an Ingress.
pub(super) static INGRESS: Message = Message {
    name: "Ingress",
    read: &["rules", "defaultBackend"],
    lost: &[],
    other: &["ingressClassName", "tls"],
};

/// Values that a field has if it is not given.
pub(super) const DEFAULTS: [(&str, &str); 5] =
    [("period", "1s"), ("burst", "1"), ("burst", "0"), ("priority", "0"), ("depth", "0")];
