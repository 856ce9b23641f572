//! Redirects connections for the application's port to Weir, inside the network namespace of a pod.
//!
//! One nftables table of the family `inet`, so the rules apply to IPv4 and IPv6. It is replaced as a whole in one transaction: a
//! second run leaves the same rules, and no connection passes in between without them.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

use std::io;

use nlink::netlink::nftables::{
    BaseChain, Chain, CmpOp, Expr, Family, MetaKey, NatHook, Priority, Register, Rule,
};
use nlink::netlink::{Connection, Nftables};

/// Name of the table. Whatever is in a table of this name belongs to Weir.
pub const TABLE: &str = "weir";

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const LOOPBACK: &str = "lo";

/// What is redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// TCP port that clients connect to.
    pub port: u16,
    /// TCP port of Weir's listener.
    pub to: u16,
    /// User of Weir, whose connections to `port` reach the application.
    pub uid: u32,
    /// TCP ports that are never redirected.
    pub excluded: Vec<u16>,
}

/// Why there are no rules.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Redirection of a port to itself, or of an excluded one.
    #[error("{0}")]
    Ports(String),
    #[error("no runtime for netlink")]
    Runtime(#[source] io::Error),
    #[error("not permitted to change rules of the network, run as user 0 with the capability NET_ADMIN")]
    NotPermitted(#[source] nlink::Error),
    #[error("the kernel has rejected the rules, which need nf_tables with NAT")]
    Rejected(#[source] nlink::Error),
}

/// Installs the rules in the network namespace of this process, in place of those of an earlier run.
///
/// # Errors
/// Returns an error if the ports contradict each other, or if the kernel rejects the rules. Nothing is changed then.
pub fn install(redirection: &Redirection) -> Result<(), RedirectError> {
    check(redirection)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let replaced = runtime.map_err(RedirectError::Runtime)?.block_on(replace_table(redirection));
    replaced.map_err(|error| match error.is_permission_denied() {
        true => RedirectError::NotPermitted(error),
        false => RedirectError::Rejected(error),
    })
}

fn check(redirection: &Redirection) -> Result<(), RedirectError> {
    let Redirection { port, to, excluded, .. } = redirection;
    if port == to {
        return Err(RedirectError::Ports(format!("--port and --to are the same port {port}")));
    }
    if excluded.contains(port) {
        return Err(RedirectError::Ports(format!("--port {port} is excluded by --exclude")));
    }
    Ok(())
}

async fn replace_table(redirection: &Redirection) -> Result<(), nlink::Error> {
    let connection = Connection::<Nftables>::new()?;
    let tables = connection.list_tables_in(Family::Inet).await?;
    let mut transaction = connection.transaction();
    if tables.iter().any(|table| table.name == *TABLE) {
        transaction = transaction.del_table(TABLE, Family::Inet);
    }
    transaction = transaction.add_table(TABLE, Family::Inet);
    for (name, hook) in [(PREROUTING, NatHook::Prerouting), (OUTPUT, NatHook::Output)] {
        let chain =
            Chain::new(TABLE, name)?.family(Family::Inet).base(BaseChain::nat(hook, Priority::DstNat));
        transaction = transaction.add_chain(chain);
    }
    for rule in rules(redirection) {
        transaction = transaction.add_rule(rule);
    }
    transaction.commit(&connection).await
}

fn rules(redirection: &Redirection) -> Vec<Rule> {
    let rule = |chain: &str| Rule::new(TABLE, chain).family(Family::Inet);
    let mut rules = Vec::new();
    for chain in [PREROUTING, OUTPUT] {
        let excluded = redirection.excluded.iter();
        rules.extend(excluded.map(|port| rule(chain).match_tcp_dport(*port).accept()));
    }
    // Connections from outside of the pod. Those on loopback have passed the other chain.
    let inbound = rule(PREROUTING).match_iif_not(LOOPBACK);
    rules.push(inbound.match_tcp_dport(redirection.port).redirect(Some(redirection.to)));
    // Other containers of the pod. Weir itself connects to the application.
    let local = rule(OUTPUT)
        .match_oif(LOOPBACK)
        .expr(Expr::Meta { dreg: Register::R0, key: MetaKey::SkUid })
        .expr(Expr::Cmp { sreg: Register::R0, op: CmpOp::Neq, data: redirection.uid.to_ne_bytes().to_vec() });
    rules.push(local.match_tcp_dport(redirection.port).redirect(Some(redirection.to)));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirection() -> Redirection {
        Redirection { port: 8080, to: 18080, uid: 65532, excluded: vec![9902] }
    }

    #[test]
    fn contradicting_ports_are_rejected() {
        let same = Redirection { to: 8080, ..redirection() };
        let excluded = Redirection { excluded: vec![8080], ..redirection() };
        for (wrong, message) in [(same, "the same port 8080"), (excluded, "8080 is excluded")] {
            assert!(check(&wrong).unwrap_err().to_string().contains(message));
        }
        assert!(check(&redirection()).is_ok());
    }

    #[test]
    fn excluded_ports_come_before_the_redirection() {
        let shown: Vec<_> = rules(&redirection()).iter().map(|rule| rule.nft_syntax().unwrap()).collect();
        let at = |part: &str| shown.iter().position(|rule| rule.contains(part)).unwrap();
        assert!(at("9902") < at("8080"), "{shown:?}");
        assert!(shown[3].contains("skuid != 65532"), "{shown:?}");
    }
}
