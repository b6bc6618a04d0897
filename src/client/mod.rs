//! The verbs over HTTP, for the command line: one request, one connection, one deadline.
//!
//! Each request has its own connection, so none meets a broken one, and a deadline, so nothing
//! hangs. After [`ClientError::NoAnswer`], or if the future of a call is dropped, the request may or
//! may not have taken effect. Retries are up to the caller: with the same token they are safe.

mod answer;
mod connect;
mod look;
mod several;
mod tls;

use std::cell::Cell;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use serde_json::json;
use tokio::net::{UnixStream, lookup_host};
use tokio::time::timeout;

use crate::client::connect::first_to_accept;
use crate::client::several::add_share;
use crate::client::tls::{Transport, lives_without};
use crate::lock::error::chain;
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::slots::Share;
use crate::lock::time::{Ttl, millis_down};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::{LOCK_TOKEN, key_path};

pub(crate) use crate::client::answer::{ClientError, Granted, Refusal};
pub(crate) use crate::client::several::KeyWish;
pub(crate) use crate::client::tls::Trust;

/// The time limit of an answer without waiting: above the deadlines of the stores.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The time limit of a health check: shorter than that of common ones around it.
const HEALTH_TIME: Duration = Duration::from_secs(3);

/// Keys per page of the list: the most that the service allows.
const PAGE: usize = 1_000;

/// The longest answer that is read: above the largest page of the list.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The beginning of the URL of a unix socket, and the URL that its requests name.
const UNIX: &str = "unix:";
const LOCAL: &str = "http://localhost";

#[derive(Clone, Debug)]
pub(crate) struct Client {
    scheme: Scheme,
    authority: Authority,
    /// The path before the routes, behind some proxies; without a slash at the end.
    prefix: String,
    /// The unix socket in place of the network.
    socket: Option<PathBuf>,
    /// For https.
    tls: Option<Arc<ClientConfig>>,
    authorization: Option<HeaderValue>,
}

/// The wishes for a lease.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// The service's default if absent.
    pub(crate) ttl: Option<Ttl>,
    /// The name of the holder, shown to others.
    pub(crate) owner: Option<Owner>,
    /// Its share of the key; an exclusive lease if absent.
    pub(crate) share: Option<Share>,
}

/// A lease as its holder names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseId<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) token: &'a LeaseToken,
    /// The fencing token, if known: a later lease of the same token has another one.
    pub(crate) fencing_token: Option<FencingToken>,
}

impl Client {
    /// Makes a client of the service at `url`, with the API key that it requires, that trusts these
    /// authorities and shows the certificate and key in these files. The error says what is wrong
    /// with one of them.
    pub(crate) fn new(
        url: &str,
        api_key: Option<&str>,
        trust: Trust<'_>,
        own: Option<(&Path, &Path)>,
    ) -> Result<Self, String> {
        let wrong =
            |reason| format!("`{}` is not the URL of a service: {reason}", without_password(url));
        let socket = url.strip_prefix(UNIX).map(PathBuf::from);
        if socket.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(wrong("name a file, as in unix:/run/lockkeeper/lockkeeper.sock"));
        }
        let network = if socket.is_some() { LOCAL } else { url };
        let uri: Uri = network.parse().map_err(|_| wrong("write it like http://host:8080"))?;
        let scheme = uri.scheme().filter(|known| [Scheme::HTTP, Scheme::HTTPS].contains(known));
        let scheme = scheme.ok_or_else(|| wrong("use http:// or https://, or unix:FILE"))?.clone();
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?.clone();
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("only a host, a port and a path are allowed"));
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !matches!(port, "" | ":") && authority.port_u16().is_none_or(|port| port == 0) {
            // hyper takes a number that is no port for none.
            return Err(wrong("write it like http://host:8080"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        if prefix.ends_with("/locks") {
            // It would work, but with other keys than every other client's.
            return Err(wrong("leave out /locks, as in http://host:8080"));
        }
        let authorization = match api_key {
            None => None,
            Some(secret) => {
                let value = HeaderValue::try_from(format!("Bearer {secret}"));
                let mut value = value.map_err(|_| unfit(secret).to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let tls = (scheme == Scheme::HTTPS).then(|| tls::config(trust, own)).transpose()?;
        Ok(Self { scheme, authority, prefix, socket, tls, authorization })
    }

    /// Returns whether the API key goes over a network unencrypted.
    pub(crate) fn exposes_api_key(&self) -> bool {
        let is_local = match self.host().parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host() == "localhost" || self.host().ends_with(".localhost"),
        };
        self.authorization.is_some() && self.scheme == Scheme::HTTP && !is_local
    }

    /// The name or address of the service's host.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Acquires the lease, and waits in line for at most `wait`, which the service may cut.
    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        wish: &Wish,
        wait: Duration,
    ) -> Result<Granted, ClientError> {
        let lease = LeaseId { key, token, fencing_token: None };
        self.claim(lease, wish, wait, wait.saturating_add(ANSWER_TIME)).await
    }

    /// Replaces the lease by a new one with the TTL of the wish, which may be shorter, and with its
    /// share.
    pub(crate) async fn replace(
        &self,
        lease: LeaseId<'_>,
        wish: &Wish,
        patience: Duration,
    ) -> Result<Granted, ClientError> {
        self.claim(lease, wish, Duration::ZERO, patience).await
    }

    async fn claim(
        &self,
        lease: LeaseId<'_>,
        wish: &Wish,
        wait: Duration,
        within: Duration,
    ) -> Result<Granted, ClientError> {
        let mut body = json!({
            "ttl_ms": wish.ttl.map(Ttl::as_millis),
            "wait_ms": millis_down(wait),
            "owner": wish.owner.as_ref().map(Owner::as_str),
            "fencing_token": lease.fencing_token.map(FencingToken::number),
        });
        add_share(&mut body, wish.share);
        let call = HttpCall {
            token: Some(lease.token),
            body: body.to_string(),
            within,
            ..HttpCall::new(Method::POST, key_path(lease.key))
        };
        Granted::of(self.call(call).await?.1, lease.key, lease.token)
    }

    /// Restarts the TTL of the lease, if it then ends later.
    pub(crate) async fn refresh(
        &self,
        lease: LeaseId<'_>,
        ttl: Option<Ttl>,
        patience: Duration,
    ) -> Result<Granted, ClientError> {
        let number = lease.fencing_token.map(FencingToken::number);
        let body = json!({ "ttl_ms": ttl.map(Ttl::as_millis), "fencing_token": number });
        let call = HttpCall {
            token: Some(lease.token),
            body: body.to_string(),
            within: patience,
            ..HttpCall::new(Method::PUT, format!("{}/refresh", key_path(lease.key)))
        };
        let granted = Granted::of(self.call(call).await?.1, lease.key, lease.token)?;
        match lease.fencing_token {
            Some(number) if number != granted.fencing_token => Err(ClientError::strange()),
            _ => Ok(granted),
        }
    }

    /// Releases the lease, or gives up the place in line.
    pub(crate) async fn release(&self, lease: LeaseId<'_>) -> Result<(), ClientError> {
        let mut path = key_path(lease.key);
        if let Some(number) = lease.fencing_token {
            path.push_str(&format!("?fencing_token={number}"));
        }
        let call = HttpCall { token: Some(lease.token), ..HttpCall::new(Method::DELETE, path) };
        match self.call(call).await? {
            (204, _) => Ok(()),
            // A proxy's page means that nothing was released.
            _ => Err(ClientError::strange()),
        }
    }

    /// A page of the held keys that begin with `prefix`, the first or the one at `cursor`.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        cursor: Option<&str>,
    ) -> Result<String, ClientError> {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let mut path = format!("/locks?limit={PAGE}&prefix={}", encoded(prefix));
        if let Some(cursor) = cursor {
            path.push_str(&format!("&cursor={}", encoded(cursor)));
        }
        Ok(self.call(HttpCall::new(Method::GET, path)).await?.1)
    }

    /// Ends the lease of any holder, only the one `named`, if given. The service logs the reason.
    pub(crate) async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
        reason: Option<&str>,
    ) -> Result<String, ClientError> {
        let reason = reason.map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
        let reason = reason.map(|reason| format!("reason={reason}"));
        let named = named.map(|named| format!("fencing_token={}", named.number()));
        let query = [reason, named].into_iter().flatten().collect::<Vec<_>>().join("&");
        let path = format!("/admin{}?{query}", key_path(key));
        Ok(self.call(HttpCall::new(Method::DELETE, path)).await?.1)
    }

    /// The status of `/healthz`. A service that demands a client certificate has answered as well:
    /// 200.
    pub(crate) async fn health(&self) -> Result<u16, BoxError> {
        let sent = Cell::new(false);
        let asked = self.exchange(HttpCall::new(Method::GET, "/healthz".to_owned()), &sent);
        match timeout(HEALTH_TIME, asked).await {
            Ok(Err(error)) if lives_without(&*error) => Ok(200),
            Ok(answer) => Ok(answer?.0),
            Err(_) => Err(format!("it did not answer within {} s", HEALTH_TIME.as_secs()).into()),
        }
    }

    async fn call(&self, call: HttpCall<'_>) -> Result<(u16, String), ClientError> {
        let within = call.within;
        let sent = Cell::new(false);
        let told = |why: String| {
            let why = match &self.socket {
                Some(path) => format!("no answer from {UNIX}{}: {why}", path.display()),
                None => format!("no answer from {}://{}: {why}", self.scheme, self.authority),
            };
            ClientError::NoAnswer { why, sent: sent.get() }
        };
        match timeout(within, self.exchange(call, &sent)).await {
            Ok(Ok((status, body))) if (200..300).contains(&status) => Ok((status, body)),
            Ok(Ok((status, body))) => {
                let refusal = Refusal::of(status, &body);
                let refusal = refusal.for_people(self.authorization.is_some());
                Err(ClientError::Refused(Box::new(refusal)))
            }
            Ok(Err(error)) => Err(told(tls::in_words(&*error).unwrap_or_else(|| chain(&*error)))),
            Err(_) => Err(told(format!("timeout after {:.1} s", within.as_secs_f64()))),
        }
    }

    /// Sends a request, notes that, and returns the answer.
    async fn exchange(
        &self,
        call: HttpCall<'_>,
        sent: &Cell<bool>,
    ) -> Result<(u16, String), BoxError> {
        let path = format!("{}{}", self.prefix, call.path);
        let mut request = Request::builder().method(call.method).uri(path);
        request = request.header(HOST, self.authority.as_str());
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(token) = call.token {
            request = request.header(LOCK_TOKEN, token.expose());
        }
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(call.body)))?;
        let (mut sender, connection) = handshake(TokioIo::new(self.connect().await?)).await?;
        sent.set(true);
        let answered = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
            Ok((head.status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
        };
        tokio::pin!(connection);
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            _ = &mut connection => answered.await,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Transport>, BoxError> {
        if let Some(path) = &self.socket {
            return Ok(Box::new(UnixStream::connect(path).await?));
        }
        let usual = if self.tls.is_some() { 443 } else { 80 };
        let port = self.authority.port_u16().unwrap_or(usual);
        let stream = first_to_accept(lookup_host((self.host(), port)).await?).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some(config) => tls::secured(config.clone(), stream, self.host()).await,
            None => Ok(Box::new(stream)),
        }
    }
}

/// The reason why a secret cannot be sent as an API key.
fn unfit(secret: &str) -> &'static str {
    match secret.contains(['\r', '\n']) {
        true => {
            "the API key has a line break: set LOCKKEEPER_API_KEY, or the file of --api-key-file, \
             to one line"
        }
        false => "the API key has a control character, which no header can have",
    }
}

/// A URL that is safe to show.
fn without_password(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, host)) => format!("...@{host}"),
        None => url.to_owned(),
    }
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct HttpCall<'a> {
    method: Method,
    path: String,
    token: Option<&'a LeaseToken>,
    body: String,
    within: Duration,
}

impl HttpCall<'_> {
    fn new(method: Method, path: String) -> Self {
        Self { method, path, token: None, body: String::new(), within: ANSWER_TIME }
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, Trust};

    fn client(url: &str, api_key: Option<&str>) -> Result<Client, String> {
        Client::new(url, api_key, Trust::Unseen, None)
    }

    #[test]
    fn a_url_is_a_host_a_port_and_a_path() {
        for (url, authority, prefix) in [
            ("http://localhost", "localhost", ""),
            ("http://localhost:8080/", "localhost:8080", ""),
            ("http://[::1]:8080", "[::1]:8080", ""),
            ("https://proxy/lockkeeper/", "proxy", "/lockkeeper"),
        ] {
            let client = client(url, None).unwrap();
            assert_eq!((client.authority.as_str(), &*client.prefix), (authority, prefix));
        }
        for url in ["", "localhost", "localhost:8080", "ftp://a", "http://a:b@c", "http://a/?b"] {
            assert!(client(url, None).is_err(), "{url}");
        }
        for url in ["http://a:99999", "http://a:0", "https://[::1]:65536", "http://a:b"] {
            let told = client(url, None).unwrap_err();
            assert!(told.ends_with("write it like http://host:8080"), "{told}");
        }
        let unix = client("unix:/run/a.sock", Some("key")).unwrap();
        assert_eq!(unix.socket.as_deref(), Some("/run/a.sock".as_ref()));
        assert!(!unix.exposes_api_key());
        assert!(client("unix:", None).is_err());
        for url in ["http://a/locks", "https://proxy/lockkeeper/locks/"] {
            let told = client(url, None).unwrap_err();
            assert!(told.contains("leave out /locks"), "{told}");
        }
        let told = client("http://a", Some("two\nlines")).unwrap_err();
        assert!(told.starts_with("the API key has a line break: "), "{told}");
        let told = client("http://a", Some("a\0b")).unwrap_err();
        assert!(told.starts_with("the API key has a control character"), "{told}");
        let told = client("http://jane:secret@a", None).unwrap_err();
        assert!(told.contains("`...@a` is not the URL of a service"), "{told}");
    }

    #[test]
    fn an_api_key_is_exposed_by_http_to_another_host() {
        for (url, exposed) in [
            ("http://localhost:8080", false),
            ("http://127.0.0.2", false),
            ("http://[::1]:8080", false),
            ("https://locks.example", false),
            ("http://locks.example", true),
            ("http://10.0.0.7:8080", true),
        ] {
            assert_eq!(client(url, Some("key")).unwrap().exposes_api_key(), exposed, "{url}");
            assert!(!client(url, None).unwrap().exposes_api_key(), "{url}");
        }
    }
}
