//! Questions about one key, which change nothing.

use hyper::Method;

use crate::client::{Client, ClientError, HttpCall, LeaseId};
use crate::lock::key::LockKey;
use crate::lock::token::FencingToken;
use crate::wire::{StatusBody, key_path};

impl Client {
    /// Returns the state of a key, with the first `waiters` of its line, if given.
    pub(crate) async fn inspect(
        &self,
        key: &LockKey,
        waiters: Option<u64>,
    ) -> Result<String, ClientError> {
        let query = waiters.map_or_else(String::new, |most| format!("?waiters={most}"));
        let path = format!("{}{query}", key_path(key));
        Ok(self.call(HttpCall::new(Method::GET, path)).await?.1)
    }

    /// Returns whether the token has the lease. On Redlock a node that does not answer may leave only
    /// its number known.
    pub(crate) async fn has(&self, lease: LeaseId<'_>) -> Result<bool, ClientError> {
        let path = key_path(lease.key);
        let call = HttpCall { token: Some(lease.token), ..HttpCall::new(Method::GET, path) };
        let body = self.call(call).await?.1;
        let status: StatusBody = serde_json::from_str(&body).map_err(|_| ClientError::strange())?;
        let number = lease.fencing_token.map(FencingToken::number);
        Ok(status.mine != Some(false) && status.fencing_token == number)
    }
}
