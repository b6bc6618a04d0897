//! A page that is embedded in the binary, with its own style and script. It may load and run
//! nothing else: the policy names the hashes of both, so a text that slips into the page as markup
//! stays inert.

use std::sync::Arc;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::api::edge;

/// The headers of every page, beside its policy. Browsers keep a page, and ask each time whether it
/// is still the same.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (CACHE_CONTROL, "no-cache"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A page, with the hashes of its parts.
#[derive(Clone, Debug)]
pub(super) struct Page {
    html: &'static str,
    policy: HeaderValue,
    etag: HeaderValue,
}

impl Page {
    /// The page of `html`, whose `<style>` and `<script>` have no attributes.
    pub(super) fn new(html: &'static str) -> Self {
        let policy = format!(
            "default-src 'none'; style-src{}; script-src{}; img-src data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            sources(html, "style"),
            sources(html, "script"),
        );
        let header = |text: String| HeaderValue::try_from(text).expect("visible ASCII");
        let etag = header(format!("\"{}\"", digest(html)));
        Self { html, policy: header(policy), etag }
    }

    /// The page, or 304 if the browser has it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let known = headers.get_all(IF_NONE_MATCH).iter();
        let known = known.filter_map(|value| value.to_str().ok()).any(|value| {
            let mut tags = value.split(',').map(|tag| tag.trim().trim_start_matches("W/"));
            tags.any(|tag| tag.as_bytes() == self.etag.as_bytes())
        });
        let own = [(CONTENT_SECURITY_POLICY, &self.policy), (ETAG, &self.etag)];
        let own = own.map(|(name, value)| (name, value.clone()));
        match known {
            true => (StatusCode::NOT_MODIFIED, HEADERS, own).into_response(),
            false => (HEADERS, own, self.html).into_response(),
        }
    }

    /// The route of the page, for everybody: it has no data.
    pub(super) fn route<S: Clone + Send + Sync + 'static>(self) -> MethodRouter<S> {
        let page = Arc::new(self);
        let answer = move |headers: HeaderMap| {
            let page = page.clone();
            async move { page.answer(&headers) }
        };
        get(answer).fallback(edge::only_get)
    }
}

/// The hashes of all elements of this name, as sources of a policy; `'none'` without one.
fn sources(html: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let texts = html.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    let hashes: String = texts.map(|(text, _)| format!(" 'sha256-{}'", digest(text))).collect();
    if hashes.is_empty() { " 'none'".to_owned() } else { hashes }
}

fn digest(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, StatusCode};

    use super::Page;

    /// `printf %s 'a { }' | openssl dgst -sha256 -binary | base64`, and of `b()`.
    const STYLE: &str = "V772Un512mwSfboBMJIh7gFKD4A2CGfkS9l77+/tDHU=";
    const SCRIPT: &str = "cf242PFc/kb7xD0Qzhsmd9vvRkc+cWFmbi+k+YvtdKc=";

    const HTML: &str = "<style>a { }</style><p>text</p><script>b()</script>";

    fn policy(page: &Page) -> &str {
        page.policy.to_str().unwrap()
    }

    #[test]
    fn a_policy_allows_what_the_page_has_and_nothing_else() {
        let page = Page::new(HTML);
        assert!(policy(&page).starts_with("default-src 'none'; "));
        assert!(policy(&page).contains(&format!("style-src 'sha256-{STYLE}';")), "{page:?}");
        assert!(policy(&page).contains(&format!("script-src 'sha256-{SCRIPT}';")), "{page:?}");
        assert!(policy(&page).ends_with("frame-ancestors 'none'"));
        assert!(policy(&Page::new("<p>")).contains("style-src 'none'; script-src 'none';"));
    }

    #[test]
    fn a_browser_that_has_the_page_is_told_so() {
        let page = Page::new(HTML);
        let asked = |tags: &str| {
            let headers = HeaderMap::from_iter([(
                axum::http::header::IF_NONE_MATCH,
                HeaderValue::try_from(tags).unwrap(),
            )]);
            page.answer(&headers).status()
        };
        let etag = page.etag.to_str().unwrap();
        assert_eq!(asked(etag), StatusCode::NOT_MODIFIED);
        assert_eq!(asked(&format!("\"other\", W/{etag}")), StatusCode::NOT_MODIFIED);
        assert_eq!(asked("\"other\""), StatusCode::OK);
    }
}
