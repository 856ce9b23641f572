//! Envoy's response flags.

/// Why a response is what it is, as in Envoy's access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) enum ResponseFlag {
    /// None.
    #[default]
    None,
    /// Refused by a rate limit.
    RateLimited,
    /// Refused by a rule that denies.
    Denied,
    /// No connection to the upstream.
    UpstreamFailure,
    /// A circuit breaker of the upstream.
    UpstreamOverflow,
    /// No upstream takes such a request.
    NoRoute,
    /// No endpoint of the upstream can be used.
    NoHealthyUpstream,
    /// The upstream closed the connection instead of responding.
    UpstreamClosed,
    /// The upstream's response was not HTTP.
    UpstreamProtocol,
    /// The upstream took too long.
    UpstreamTimeout,
    /// The request was malformed.
    DownstreamProtocol,
    /// The client left.
    DownstreamClosed,
    /// The client stopped sending.
    IdleTimeout,
    /// Shed for overload.
    Overloaded,
    /// A rate limit service did not respond.
    RateLimitServiceError,
}

impl ResponseFlag {
    pub(in crate::proxy) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::RateLimited => "RL",
            Self::Denied => "UAEX",
            Self::UpstreamFailure => "UF",
            Self::UpstreamOverflow => "UO",
            Self::NoRoute => "NR",
            Self::NoHealthyUpstream => "UH",
            Self::UpstreamClosed => "UC",
            Self::UpstreamProtocol => "UPE",
            Self::UpstreamTimeout => "UT",
            Self::DownstreamProtocol => "DPE",
            Self::DownstreamClosed => "DC",
            Self::IdleTimeout => "SI",
            Self::Overloaded => "OM",
            Self::RateLimitServiceError => "RLSE",
        }
    }

    /// The same of a request whose retries are exhausted.
    pub(in crate::proxy) const fn exhausted(self) -> &'static str {
        match self {
            Self::None => "URX",
            Self::UpstreamFailure => "UF,URX",
            Self::UpstreamClosed => "UC,URX",
            Self::UpstreamTimeout => "UT,URX",
            other => other.as_str(),
        }
    }
}
