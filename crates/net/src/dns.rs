//! Addresses of names, from the resolver of the system. A query occupies a thread until it has ended.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of a periodic lookup. Resolvers wait 5 seconds for their first server, and then query another one.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a lookup that a request waits for, including the time for which it waits for its turn.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts a query, which continues if the returned handle is dropped. Its `permits` are dropped when it has ended.
pub fn query(host: &str, port: u16, permits: impl Send + 'static) -> JoinHandle<io::Result<Vec<SocketAddr>>> {
    let name = (host.to_owned(), port);
    tokio::spawn(async move {
        let _permits = permits;
        tokio::net::lookup_host(name).await.map(Iterator::collect)
    })
}

/// Returns the addresses of a name that is looked up periodically.
///
/// # Errors
/// The error of the resolver, or [`io::ErrorKind::TimedOut`].
pub async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = timeout(REFRESH_TIMEOUT, query(host, port, ())).await;
    found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?
}

/// Returns at most `max` distinct addresses. Resolvers rotate the order, so it is not kept.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if there are none.
pub fn distinct(mut addresses: Vec<SocketAddr>, max: usize) -> io::Result<Vec<SocketAddr>> {
    addresses.truncate(max);
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
}

/// Returns the error for a name without addresses.
pub fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no address")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn distinct_addresses_are_sorted_and_bounded() {
        let at = |last: u8| SocketAddr::from(([192, 0, 2, last], 1));
        assert_eq!(distinct(vec![at(2), at(1), at(2), at(3)], 3).unwrap(), [at(1), at(2)]);
        assert_eq!(distinct(Vec::new(), 3).unwrap_err().to_string(), "no address");
    }

    #[tokio::test]
    async fn permits_are_held_until_the_query_has_ended() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        drop(query("127.0.0.1", 80, permit));
        assert_eq!(permits.available_permits(), 0, "the query has not begun");
        drop(permits.acquire().await.unwrap());
        assert_eq!(look_up("127.0.0.1", 80).await.unwrap(), [(Ipv4Addr::LOCALHOST, 80).into()]);
    }
}
