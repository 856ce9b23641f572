//! The list of endpoints, for people.

use std::fmt::Write;

use http::StatusCode;

use super::State;
use super::query::Query;
use super::reply::{self, Reply};
use super::router::{ENDPOINTS, Effect};
use crate::telemetry::metrics::VERSION;

/// `GET /help`, and the body of a 404.
pub(super) fn text(_: &State, _: &Query<'_>) -> Reply {
    reply::text(StatusCode::OK, listing())
}

pub(super) fn listing() -> String {
    let mut text = "admin commands are:\n".to_owned();
    for endpoint in &ENDPOINTS {
        // Writing to a string cannot fail.
        let _ = match endpoint.effect {
            Effect::Tells => writeln!(text, "  {}: {}", endpoint.path, endpoint.help),
            Effect::Acts => writeln!(text, "  {} (POST): {}", endpoint.path, endpoint.help),
        };
    }
    text
}

/// `GET /`: without buttons, since what acts is not accepted from a browser.
pub(super) fn index(_: &State, _: &Query<'_>) -> Reply {
    let mut rows = String::new();
    for endpoint in &ENDPOINTS {
        let path = match endpoint.effect {
            Effect::Tells => format!("<a href=\"{0}\">{0}</a>", endpoint.path),
            Effect::Acts => format!("POST {}", endpoint.path),
        };
        let _ = writeln!(rows, "<tr><td><code>{path}</code></td><td>{}</td></tr>", endpoint.help);
    }
    reply::html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Weir</title>\n\
         <style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em}}td{{padding:.1em 1.5em .1em 0}}</style>\n\
         <h1>Weir {VERSION}</h1>\n<table>\n{rows}</table>\n</html>\n"
    ))
}
