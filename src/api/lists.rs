//! Lists: limits how many ask the store at a time, and how many pages wait for their clients, to
//! protect the other verbs and the memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::api::error::ApiError;
use crate::lock::error::LockError;
use crate::lock::permit::Permit;
use crate::lock::store::Listing;
use crate::wire::ListBody;

/// Lists that ask the store at a time: on the embedded store a list blocks all other requests.
const ASKING: usize = 4;

/// The longest that a list waits for its turn.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of a page: a thousand keys of usual length, and the limit of what a client that
/// does not read costs.
const PAGE_BYTES: usize = 256 * 1024;

/// The lists under way.
#[derive(Debug)]
pub struct Lists {
    open: Arc<Semaphore>,
    asking: Semaphore,
}

/// A list's place until its client has read the page.
#[derive(Debug)]
pub(super) struct OpenList {
    _permit: Option<Permit>,
    _open: OwnedSemaphorePermit,
}

impl Lists {
    /// Room for `most` lists.
    pub fn new(most: usize) -> Self {
        Self { open: Arc::new(Semaphore::new(most)), asking: Semaphore::new(ASKING) }
    }

    /// Waits for a place, and for the store.
    pub(super) async fn enter(
        &self,
        permit: Option<Permit>,
    ) -> Result<(OpenList, SemaphorePermit<'_>), ApiError> {
        let turn = async {
            // A client that sends one list after another must not keep its thread from others.
            tokio::task::yield_now().await;
            let open = self.open.clone().acquire_owned().await.expect("never closed");
            let asking = self.asking.acquire().await.expect("never closed");
            (OpenList { _permit: permit, _open: open }, asking)
        };
        let full = || LockError::TooManyWaiters("this instance has too many lists").into();
        timeout(PATIENCE, turn).await.map_err(|_| full())
    }
}

/// The answer, with as many keys as fit into a page.
pub(super) fn page(listing: Listing, place: OpenList) -> Response {
    struct Page(Vec<u8>, #[expect(dead_code, reason = "held until the page is sent")] OpenList);

    impl AsRef<[u8]> for Page {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    let page = Page(ListBody::of(listing, PAGE_BYTES), place);
    ([(CONTENT_TYPE, "application/json")], Body::from(Bytes::from_owner(page))).into_response()
}
