//! Why an answer is what it is, in Envoy's letters.

/// Envoy's response flags: why an answer is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) enum Flag {
    /// Nothing to remark.
    #[default]
    None,
    /// Refused by a rate limit.
    RateLimited,
    /// Refused by a rule that denies.
    Denied,
    /// No connection to the upstream.
    UpstreamFailure,
    /// As much is under way to the upstream as may be.
    UpstreamOverflow,
    /// No upstream takes such a request.
    NoRoute,
    /// No endpoint of the upstream can be used.
    NoHealthyUpstream,
    /// The upstream closed the connection instead of answering.
    UpstreamClosed,
    /// The upstream's answer was not HTTP.
    UpstreamProtocol,
    /// The upstream took too long.
    UpstreamTimeout,
    /// The request was malformed.
    DownstreamProtocol,
    /// The client left.
    DownstreamClosed,
    /// The client stopped sending.
    IdleTimeout,
    /// There is too much of something.
    Overloaded,
    /// A rate limit service gave no answer.
    RateLimitServiceError,
}

impl Flag {
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

    /// The same of a request that was tried as often as might be.
    pub(super) const fn exhausted(self) -> &'static str {
        match self {
            Self::None => "URX",
            Self::UpstreamFailure => "UF,URX",
            Self::UpstreamClosed => "UC,URX",
            Self::UpstreamTimeout => "UT,URX",
            other => other.as_str(),
        }
    }
}
