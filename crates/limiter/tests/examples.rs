//! The examples limit what they say they limit.
#![expect(dead_code, reason = "the functions `main` of the examples are not called")]

#[path = "../examples/axum.rs"]
mod axum_server;
#[path = "../examples/tower.rs"]
mod tower_layer;

use std::net::{IpAddr, SocketAddr};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode, header};
use tower::{BoxError, Layer, ServiceExt};
use weir_limiter::{Quota, RetryAfter};

use self::tower_layer::RateLimitLayer;

/// Returns the status of a request of `client`, and the value of `retry-after`.
async fn request(router: &axum::Router, client: &str) -> (StatusCode, Option<u64>) {
    let mut request = Request::new(Body::empty());
    let client = SocketAddr::new(client.parse::<IpAddr>().expect("an address"), 1000);
    request.extensions_mut().insert(ConnectInfo(client));
    let response = router.clone().oneshot(request).await.expect("a response");
    let seconds = response.headers().get(header::RETRY_AFTER);
    (
        response.status(),
        seconds.map(|seconds| seconds.to_str().ok().and_then(|text| text.parse().ok()).expect("seconds")),
    )
}

#[tokio::test]
async fn axum_server_rejects_one_client_and_no_other() {
    let router = axum_server::router().unwrap();
    let mut rejected = None;
    // The limit refills while the test runs, so the number of requests that it takes depends on the machine.
    while rejected.is_none() {
        let (status, retry_after) = request(&router, "2001:db8::1").await;
        rejected = retry_after;
        assert_eq!(status == StatusCode::TOO_MANY_REQUESTS, rejected.is_some());
    }
    assert_eq!(rejected, Some(1));
    for other in ["2001:db8:0:1::1", "192.0.2.1"] {
        assert_eq!(request(&router, other).await, (StatusCode::OK, None));
    }
}

#[tokio::test]
async fn tower_layer_rejects_with_the_error_of_the_limiter() {
    let layer = RateLimitLayer::new(Quota::per_month(1).build().unwrap(), |key: &u32| *key);
    let service = || layer.layer(tower::service_fn(|key: u32| async move { Ok::<_, BoxError>(key) }));
    assert_eq!(service().oneshot(7).await.unwrap(), 7);
    let error = service().oneshot(7).await.unwrap_err();
    let rejected = error.downcast_ref::<RetryAfter>().unwrap();
    assert!(!rejected.wait().is_zero() && !rejected.exceeds_quota());
    assert_eq!(service().oneshot(8).await.unwrap(), 8);
}
