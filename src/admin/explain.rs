//! `GET /explain`: what would happen to a request, and why.

use http::StatusCode;

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use weir_limiter::elastic::Headroom;
use weir_replay::explain::{self, ExplainContext, Explanation, RequestDescription, StoreState};

/// `GET /explain[?method=...][&path=...][&host=...][&client_ip=...][&header.NAME=...][&body=...][&domain=...&descriptor.KEY=...]`
pub(super) fn explain(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let request = match RequestDescription::from_pairs(query.pairs()) {
        Ok(request) => request,
        Err(error) => return response::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let is_text = match query.get("format").as_deref() {
        None | Some("json") => false,
        Some("text") => true,
        Some(_) => return response::text(StatusCode::BAD_REQUEST, "usage: /explain?format=json|text\n"),
    };
    let explanation = explain_request(state, &request);
    if is_text {
        return response::text(StatusCode::OK, explain::render(&explanation));
    }
    // Numbers, strings and lists always serialise.
    response::json(&serde_json::to_value(&explanation).unwrap_or_default())
}

fn explain_request(state: &AdminState, request: &RequestDescription) -> Explanation {
    let policy = state.process.policy();
    let assessment = state.process.elastic_assessment();
    let mut explanation = explain::explain(
        request,
        &ExplainContext {
            policy: &policy,
            limiter: &state.limiter,
            overrides: &state.overrides,
            headroom: assessment.map_or(Headroom::NONE, |assessment| assessment.headroom),
            store: match state.process.is_store_unreachable() {
                Some(false) => StoreState::Reachable,
                Some(true) | None => StoreState::Unreachable,
            },
            parts: &state.process.store_parts(),
            now: state.process.now(),
            wall_clock: state.process.wall_clock(),
        },
    );
    let preview =
        request.domain.as_ref().and_then(|domain| state.process.preview_documents(domain, &request.entries));
    if let Some(report) = preview {
        explanation = explanation.with_documents(report);
    }
    explanation.config_hash = Some(format!("{:016x}", state.process.configuration().text_hash));
    explanation
}
