//! Envoy's response flags.

use weir_bodies::Unreadable;

/// Reason for a response, as in Envoy's access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) enum ResponseFlag {
    #[default]
    None,
    /// Rejected by a rate limit.
    RateLimited,
    /// Rejected by a rule with `action: deny`, or by the allow lists of a forward proxy.
    Denied,
    /// Rejected by a rule that needs a field of the body, which cannot be read for this reason.
    UnreadableBody(Unreadable),
    /// No connection to the upstream could be made.
    UpstreamFailure,
    /// Rejected by a circuit breaker of the upstream.
    UpstreamOverflow,
    /// No route matches the request.
    NoRoute,
    /// No endpoint of the upstream is available.
    NoHealthyUpstream,
    /// The name of the destination could not be resolved.
    DnsFailed,
    /// The upstream closed the connection before its response was complete.
    UpstreamClosed,
    /// The upstream's response was malformed.
    UpstreamProtocol,
    /// The upstream's response timed out.
    UpstreamTimeout,
    /// The request was malformed.
    DownstreamProtocol,
    /// The client closed the connection.
    DownstreamClosed,
    /// The client stopped sending.
    IdleTimeout,
    /// Shed by overload protection.
    Overloaded,
    /// A rate limit service did not respond.
    RateLimitServiceError,
    /// The request was to be stored and sent later, and was not stored.
    NotStored,
}

impl ResponseFlag {
    /// Whether a rule rejected the request.
    pub(in crate::proxy) const fn is_rejection(self) -> bool {
        matches!(self, Self::RateLimited | Self::Denied | Self::UnreadableBody(_))
    }

    pub(in crate::proxy) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::RateLimited => "RL",
            Self::Denied => "UAEX",
            Self::UnreadableBody(reason) => match reason {
                Unreadable::Invalid => "UAEX,UB_INVALID",
                Unreadable::TooDeep => "UAEX,UB_TOO_DEEP",
                Unreadable::Duplicate => "UAEX,UB_DUPLICATE",
                Unreadable::TooLong => "UAEX,UB_TOO_LONG",
                Unreadable::TooManyElements => "UAEX,UB_TOO_MANY_ELEMENTS",
                Unreadable::ContentType => "UAEX,UB_CONTENT_TYPE",
                Unreadable::Coding => "UAEX,UB_CODING",
                Unreadable::Graphql => "UAEX,UB_GRAPHQL",
                Unreadable::GraphqlTooLarge => "UAEX,UB_GRAPHQL_TOO_LARGE",
            },
            Self::UpstreamFailure => "UF",
            Self::UpstreamOverflow => "UO",
            Self::NoRoute => "NR",
            Self::NoHealthyUpstream => "UH",
            Self::DnsFailed => "DF",
            Self::UpstreamClosed => "UC",
            Self::UpstreamProtocol => "UPE",
            Self::UpstreamTimeout => "UT",
            Self::DownstreamProtocol => "DPE",
            Self::DownstreamClosed => "DC",
            Self::IdleTimeout => "SI",
            Self::Overloaded => "OM",
            Self::RateLimitServiceError => "RLSE",
            Self::NotStored => "NS",
        }
    }

    /// Returns the flags of a request whose retries are exhausted.
    pub(in crate::proxy) const fn as_str_retries_exhausted(self) -> &'static str {
        match self {
            Self::None => "URX",
            Self::UpstreamFailure => "UF,URX",
            Self::UpstreamClosed => "UC,URX",
            Self::UpstreamTimeout => "UT,URX",
            other => other.as_str(),
        }
    }
}
