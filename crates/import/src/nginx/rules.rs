//! Rules for the limits and access rules of a configuration.

use std::collections::{HashMap, HashSet};

use super::super::remark::{Effect, Remark};
use super::super::rule_text::{RuleListItem, RuleText, UniqueNames, list, map, scalar};
use super::super::scope::{MatchField, Scope};
use super::coverage::{CellUses, PlacedScope, placed_scopes};
use super::http_config::HttpConfig;
use super::level::{AccessRule, Amount, LimitUse};
use super::syntax::Place;
use super::zone::{KeyCase, NginxZone, Rate};

/// The status of rejections that rules use if none is given.
const DEFAULT_STATUS: u16 = 429;
/// The status that stands for no response.
const CLOSE_STATUS: u16 = 444;
/// Maximum time that a rule delays a request, in milliseconds.
const MAX_DELAY_MILLIS: u64 = 3_600_000;

/// Something in force.
struct InForce<T> {
    what: T,
    /// Where it stands, first the place that is named in comments.
    places: Vec<Place>,
    uses: Vec<CellUses>,
}

/// A rule that may share its counter with others.
struct ZoneRule {
    zone: String,
    /// The key in nginx: text in it separates counters, and a rule's key has only its variables.
    key_template: String,
    /// Everything that rules of one counter have in common.
    definition: Vec<(&'static str, String)>,
    /// The server, if each has counters of its own.
    server: Option<usize>,
    scope: Scope,
    on_limit: Option<String>,
    notes: Vec<Remark>,
}

/// Writes the rules of a configuration.
#[derive(Default)]
pub(super) struct RuleWriter {
    names: UniqueNames,
    items: Vec<RuleListItem>,
    rules: Vec<ZoneRule>,
    /// The places of directives that rules express.
    used: HashSet<Place>,
}

impl RuleWriter {
    /// Returns rules and comments for everything in force, with the places of the directives that rules express.
    pub(super) fn write(mut self, config: &HttpConfig<'_>) -> (Vec<RuleListItem>, HashSet<Place>) {
        for note in &config.notes {
            self.items.push(RuleListItem::Comment(note.clone()));
        }
        let mut limits: Vec<InForce<LimitUse>> = Vec::new();
        let mut access: Vec<InForce<Vec<AccessRule>>> = Vec::new();
        for (index, server) in config.servers.iter().enumerate() {
            for (cell_index, cell) in server.cells.iter().enumerate() {
                for (limit, place) in cell.level.limits() {
                    add_use(&mut limits, limit, &[place], index, cell_index);
                }
                if !cell.level.access().is_empty() {
                    let rules = cell.level.access().to_vec();
                    add_use(&mut access, rules, cell.level.access_places(), index, cell_index);
                }
            }
            if server.cells.iter().any(|cell| cell.level.has_unused_access()) {
                self.comment(format!(
                    "{}: `allow` and `deny` with `satisfy any` are not converted",
                    server.place
                ));
            }
        }
        for InForce { what, uses, places } in access {
            self.add_access(config, &what, &uses);
            self.used.extend(places);
        }
        for InForce { what, places, uses } in limits {
            let Some(place) = places.first() else { continue };
            if self.add_limit(config, &what, place, &uses) {
                self.used.extend(places);
            }
        }
        self.write_zone_rules();
        (self.items, self.used)
    }

    /// Says that a limit or an access rule is not converted.
    fn comment(&mut self, text: String) {
        self.items.push(RuleListItem::Comment(Remark::new(Effect::Looser, text)));
    }

    fn add_access(&mut self, config: &HttpConfig<'_>, rules: &[AccessRule], uses: &[CellUses]) {
        let mut allowed: Vec<String> = Vec::new();
        let mut denied: Vec<(Option<Vec<String>>, Vec<String>)> = Vec::new();
        for rule in rules {
            match (&rule.network, rule.is_allowed) {
                (Some(network), true) => allowed.push(network.clone()),
                (None, true) => break,
                (None, false) => {
                    denied.push((None, allowed.clone()));
                    break;
                }
                (Some(network), false) => match denied.last_mut() {
                    Some((Some(networks), excepted)) if *excepted == allowed => {
                        networks.push(network.clone())
                    }
                    _ => denied.push((Some(vec![network.clone()]), allowed.clone())),
                },
            }
        }
        for (networks, excepted) in denied {
            let mut clients = Scope::default();
            clients.require(MatchField::ClientIp, networks.unwrap_or_default());
            clients.except(MatchField::ClientIp, excepted);
            for placed in placed_scopes(config, uses, false) {
                // Nothing else here compares addresses.
                let Some(scope) = placed.scope.intersection(&clients) else { continue };
                let mut rule = RuleText { comments: placed.notes, ..RuleText::default() };
                rule.set("name", scalar(&self.names.make_unique("deny")));
                scope.write(&mut rule);
                rule.set("action", "deny");
                self.items.push(RuleListItem::Rule(rule));
            }
        }
    }

    /// Returns the zone of a limit; a comment says that there is none.
    fn find_zone<'c>(
        &mut self,
        config: &'c HttpConfig<'_>,
        limit: &LimitUse,
        place: &Place,
    ) -> Option<&'c NginxZone> {
        let is_connections = matches!(limit.amount, Amount::Connections(_));
        let is_zone = |zone: &&NginxZone| zone.name == limit.zone && zone.rate.is_none() == is_connections;
        let zone = config.zones.iter().find(is_zone);
        if zone.is_none() {
            let directive = if is_connections { "limit_conn" } else { "limit_req" };
            let missing = format!("`{directive}` of zone `{}`: `{directive}_zone` is not here", limit.zone);
            self.comment(format!("{place}: {missing}"));
        }
        zone
    }

    /// Adds the rules of a limit; returns whether there are any.
    fn add_limit(
        &mut self,
        config: &HttpConfig<'_>,
        limit: &LimitUse,
        place: &Place,
        uses: &[CellUses],
    ) -> bool {
        let Some(zone) = self.find_zone(config, limit, place) else { return false };
        let name = &limit.zone;
        let cases = zone.key_cases(&config.selections).unwrap_or_else(|reason| {
            self.comment(format!("{place}: zone `{name}` is not converted: {reason} ({})", zone.place));
            Vec::new()
        });
        let mut has_rules = false;
        let mut delay_note: Option<Remark> = None;
        for case in &cases {
            for PlacedScope { server, scope, mut notes } in placed_scopes(config, uses, case.is_per_server) {
                let Some(scope) = scope.intersection(&case.scope) else {
                    let reason = "its key and its place both select hosts or paths";
                    self.comment(format!("{place}: zone `{name}` is not converted: {reason}"));
                    continue;
                };
                notes.extend(case.notes.iter().cloned());
                let definition = definition(limit, zone.rate, case, &mut delay_note);
                notes.extend(delay_note.clone());
                let on_limit = on_limit(limit.status, &mut notes);
                self.used.insert(zone.place.clone());
                self.used.extend(zone.variables().iter().flat_map(|name| config.selections.places(name)));
                has_rules = true;
                self.rules.push(ZoneRule {
                    zone: limit.zone.clone(),
                    key_template: case.template.clone(),
                    definition,
                    server: server.filter(|_| case.is_per_server),
                    scope,
                    on_limit,
                    notes,
                });
            }
        }
        has_rules
    }

    /// Adds the rules of all zones. Rules of a zone that define its counter in the same way share it.
    fn write_zone_rules(&mut self) {
        let mut counters: HashMap<(String, String), String> = HashMap::new();
        let mut uses: HashMap<(String, String), usize> = HashMap::new();
        let mut definitions: HashMap<String, Vec<Vec<(&'static str, String)>>> = HashMap::new();
        let rules = std::mem::take(&mut self.rules);
        let key_of = |rule: &ZoneRule| {
            let ZoneRule { server, key_template, definition, .. } = rule;
            (rule.zone.clone(), format!("{server:?} {key_template:?} {definition:?}"))
        };
        let definitions_key = |rule: &ZoneRule| format!("{:?} {:?}", rule.zone, rule.key_template);
        for rule in &rules {
            *uses.entry(key_of(rule)).or_default() += 1;
            let known = definitions.entry(definitions_key(rule)).or_default();
            if !known.contains(&rule.definition) {
                known.push(rule.definition.clone());
            }
        }
        for rule in rules {
            let name = self.names.make_unique(&rule.zone);
            let key = key_of(&rule);
            let known = definitions.get(&definitions_key(&rule));
            let mut text = RuleText { comments: rule.notes, ..RuleText::default() };
            if known.is_some_and(|known| has_other_amount(known, &rule.definition)) {
                let what = format!(
                    "zone `{}` has several bursts, delays or numbers: each is counted apart; nginx has one counter",
                    rule.zone
                );
                text.add_remark(Remark::new(Effect::Looser, what));
            }
            text.set("name", scalar(&name));
            rule.scope.write(&mut text);
            rule.definition.into_iter().for_each(|(field, value)| text.set(field, value));
            if uses.get(&key).is_some_and(|count| *count > 1) {
                text.set("counter", scalar(counters.entry(key).or_insert(name)));
            }
            if let Some(on_limit) = rule.on_limit {
                text.set("on_limit", on_limit);
            }
            self.items.push(RuleListItem::Rule(text));
        }
    }
}

/// Returns the response to rejected requests, unless it is the default.
fn on_limit(status: u16, notes: &mut Vec<Remark>) -> Option<String> {
    if status == CLOSE_STATUS {
        let text = "status 444 closes the connection without a response: here, rejected requests get 429";
        notes.push(Remark::new(Effect::None, text));
        return None;
    }
    (status != DEFAULT_STATUS).then(|| map([("status", status.to_string())]))
}

/// Whether a zone has the same key with another limit.
fn has_other_amount(known: &[Vec<(&'static str, String)>], own: &[(&'static str, String)]) -> bool {
    let key = |definition: &[(&'static str, String)]| {
        definition.iter().find(|(field, _)| *field == "key").map(|(_, key)| key.clone())
    };
    known.iter().any(|other| other.as_slice() != own && key(other) == key(own))
}

fn add_use<T: PartialEq>(all: &mut Vec<InForce<T>>, what: T, places: &[Place], server: usize, cell: usize) {
    let known = all.iter_mut().find(|known| known.what == what);
    let Some(InForce { uses, places: known_places, .. }) = known else {
        let uses = vec![CellUses { server, cells: vec![cell] }];
        return all.push(InForce { what, places: places.to_vec(), uses });
    };
    known_places.extend(places.iter().cloned());
    match uses.iter_mut().find(|known| known.server == server) {
        // A location may have the same limit twice.
        Some(known) if known.cells.contains(&cell) => {}
        Some(known) => known.cells.push(cell),
        None => uses.push(CellUses { server, cells: vec![cell] }),
    }
}

/// Returns the fields of a rule that define its counter.
fn definition(
    limit: &LimitUse,
    rate: Option<Rate>,
    case: &KeyCase,
    note: &mut Option<Remark>,
) -> Vec<(&'static str, String)> {
    let mut fields = vec![("key", list(&case.parts))];
    let mut throttle = limit.is_dry_run.then(|| "shadow".to_owned());
    match (limit.amount, rate) {
        (Amount::Connections(count), _) => fields.push(("in_flight", count.to_string())),
        (Amount::Requests { .. }, None) => {}
        (Amount::Requests { burst, undelayed }, Some(rate)) => {
            let unit = if rate.seconds == 1 { "s" } else { "min" };
            fields.push(("limit", format!("{}/{unit}", rate.count)));
            fields.push(("burst", undelayed.saturating_add(1).to_string()));
            let delayed = burst.saturating_sub(undelayed);
            if throttle.is_none() && delayed > 0 {
                throttle = Some(format_delay(delayed, rate, note));
            }
        }
    }
    fields.extend(throttle.map(|throttle| ("throttle", throttle)));
    fields
}

/// Formats the delay of the last of this number of requests that wait for the rate.
fn format_delay(delayed: u32, rate: Rate, note: &mut Option<Remark>) -> String {
    let total = u64::from(delayed).saturating_mul(u64::from(rate.seconds)).saturating_mul(1000);
    let count = u64::from(rate.count);
    let millis = total.div_ceil(count);
    if millis > MAX_DELAY_MILLIS {
        let text = format!("nginx delays up to {} s; a rule delays up to an hour", millis / 1000);
        *note = Some(Remark::new(Effect::Tighter, text));
    }
    let capped = millis.min(MAX_DELAY_MILLIS);
    let text = match capped.is_multiple_of(1000) {
        true => format!("{}s", capped / 1000),
        false => format!("{capped}ms"),
    };
    // Where the delay is not a whole number of milliseconds, the queue bounds the requests.
    match total.is_multiple_of(count) && delayed <= 10_000 {
        true => format!("delay {text}"),
        false => map([("delay", text), ("queue", delayed.to_string())]),
    }
}
