//! A page that is embedded in the binary, with its own style and script. It may load and run
//! nothing else: the policy names the hashes of both, so a text that slips into the page as markup
//! stays inert. Only the page of the contract loads a script, which is embedded as well.

use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The headers of everything here, beside its own. Browsers keep a page, and ask each time whether
/// it is still the same.
const HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-cache"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A page, or the script of one, with its headers.
#[derive(Clone, Debug)]
pub(super) struct Page {
    body: &'static [u8],
    headers: HeaderMap,
}

impl Page {
    /// The page of `html`, whose `<style>` and `<script>` have no attributes.
    pub(super) fn new(html: &'static str) -> Self {
        Self::under(html, &sources(html, "style"), &sources(html, "script"))
    }

    /// The page of `html`, which loads a script of this service. The script makes `<style>` and
    /// `style=""` as it runs, whose hashes nobody can list, so every style is allowed. The page
    /// shows no data of others that could bring one.
    pub(super) fn with_library(html: &'static str) -> Self {
        Self::under(html, " 'unsafe-inline'", &format!(" 'self'{}", sources(html, "script")))
    }

    fn under(html: &'static str, styles: &str, scripts: &str) -> Self {
        let policy = format!(
            "default-src 'none'; style-src{styles}; script-src{scripts}; img-src data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        );
        let own = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, &policy)];
        Self::of(html.as_bytes(), own)
    }

    /// A script that is stored compressed. It is sent so, whatever the client accepts: only
    /// browsers load it, and they all read gzip.
    pub(super) fn script(gzip: &'static [u8]) -> Self {
        let own = [(CONTENT_TYPE, "text/javascript; charset=utf-8"), (CONTENT_ENCODING, "gzip")];
        Self::of(gzip, own)
    }

    fn of(body: &'static [u8], own: [(HeaderName, &str); 2]) -> Self {
        let etag = format!("\"{}\"", digest(body));
        let all = HEADERS.into_iter().chain(own).chain([(ETAG, etag.as_str())]);
        let value = |text| HeaderValue::from_str(text).expect("visible ASCII");
        Self { body, headers: all.map(|(name, text)| (name, value(text))).collect() }
    }

    /// The page, or 304 if the browser has it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let etag = self.headers[ETAG].to_str().unwrap_or_default();
        let mut known = headers.get_all(IF_NONE_MATCH).iter();
        // Weak or not, alone or among others: no other tag has this one within it.
        match known.any(|tags| tags.to_str().is_ok_and(|tags| tags.contains(etag))) {
            true => (StatusCode::NOT_MODIFIED, self.headers.clone()).into_response(),
            false => (self.headers.clone(), self.body).into_response(),
        }
    }

    /// The route of a page, for everybody: it has no data.
    pub(super) fn route<S: Clone + Send + Sync + 'static>(
        page: &'static LazyLock<Self>,
    ) -> MethodRouter<S> {
        get(move |headers: HeaderMap| async move { page.answer(&headers) })
    }
}

/// The hashes of all elements of this name, as sources of a policy; `'none'` without one.
fn sources(html: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let texts = html.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    let hashes: String =
        texts.map(|(text, _)| format!(" 'sha256-{}'", digest(text.as_bytes()))).collect();
    if hashes.is_empty() { " 'none'".to_owned() } else { hashes }
}

fn digest(text: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::Page;

    /// `printf %s 'a { }' | openssl dgst -sha256 -binary | base64`, and of `b()`.
    const STYLE: &str = "V772Un512mwSfboBMJIh7gFKD4A2CGfkS9l77+/tDHU=";
    const SCRIPT: &str = "cf242PFc/kb7xD0Qzhsmd9vvRkc+cWFmbi+k+YvtdKc=";

    const HTML: &str = "<style>a { }</style><p>text</p><script>b()</script>";

    fn policy(page: &Page) -> &str {
        page.headers["content-security-policy"].to_str().unwrap()
    }

    #[test]
    fn a_policy_allows_what_the_page_has_and_nothing_else() {
        let page = Page::new(HTML);
        assert!(policy(&page).starts_with("default-src 'none'; "));
        assert!(policy(&page).contains(&format!("style-src 'sha256-{STYLE}';")), "{page:?}");
        assert!(policy(&page).contains(&format!("script-src 'sha256-{SCRIPT}';")), "{page:?}");
        assert!(policy(&page).ends_with("frame-ancestors 'none'"));
        assert!(policy(&Page::new("<p>")).contains("style-src 'none'; script-src 'none';"));
        let page = Page::with_library(HTML);
        let more = format!("style-src 'unsafe-inline'; script-src 'self' 'sha256-{SCRIPT}';");
        assert!(policy(&page).contains(&more), "{page:?}");
    }
}
