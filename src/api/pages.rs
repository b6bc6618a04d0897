//! Keeps web pages from calling a service without API keys: any page can make a browser send
//! requests to this machine, and a lock is taken even if the page may not read the answer.
//! Other programs send neither header and are not affected.

use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderName, Version};

use crate::api::error::ApiError;
use crate::auth::AllowedHosts;
use crate::wire::Code;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The values that a browser sends for this service's own pages and for its user.
const OWN_SITES: [&[u8]; 2] = [b"same-origin", b"none"];

/// Refuses requests of web pages of another origin, and requests that name a host outside `hosts`,
/// as after DNS rebinding.
pub(super) fn refuse_others(parts: &Parts, hosts: &AllowedHosts) -> Result<(), ApiError> {
    let sites = parts.headers.get_all(SEC_FETCH_SITE);
    let own_site = sites.iter().all(|site| OWN_SITES.contains(&site.as_bytes()));
    let host = host(parts);
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    let own_origin = origins.all(|origin| origin.to_str().is_ok_and(|text| is_of(text, host)));
    if !own_site || !own_origin {
        let detail = "web pages of another origin may not call a service without API keys";
        return Err(ApiError::new(Code::ForbiddenOrigin, detail));
    }
    // Every browser sends a host; some HTTP/1.0 clients do not.
    if (host.is_empty() && parts.version == Version::HTTP_10) || hosts.admit(host) {
        return Ok(());
    }
    let detail = "unknown host name: add it to `allowed_hosts`, or call the IP address";
    Err(ApiError::new(Code::ForbiddenOrigin, detail))
}

/// The host of the request; empty if it names none.
fn host(parts: &Parts) -> &str {
    let named = parts.headers.get(HOST).and_then(|value| value.to_str().ok());
    parts.uri.authority().map(|authority| authority.as_str()).or(named).unwrap_or_default().trim()
}

/// Returns whether an origin is of this host. Behind a proxy its scheme may differ.
fn is_of(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    let host = host.strip_suffix(port).unwrap_or(host);
    !host.is_empty() && authority.eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Version};

    use super::{is_of, refuse_others};
    use crate::auth::AllowedHosts;

    fn goes_on(uri: &str, version: Version, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::get(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        refuse_others(&parts, &AllowedHosts::default()).is_ok()
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for origin in ["http://a:1", "HTTP://A:1", "https://a:1"] {
            assert!(is_of(origin, "a:1"), "{origin}");
        }
        assert!(
            is_of("https://a", "a") && is_of("https://a", "a:443") && is_of("http://a", "a:80")
        );
        for origin in ["null", "", "a:1", "http://a", "http://a:2", "http://b:1", "http://a:1.b"] {
            assert!(!is_of(origin, "a:1"), "{origin}");
        }
        assert!(!is_of("http://", "") && !is_of("http://a", "a:443"));
    }

    #[test]
    fn each_header_of_a_request_has_to_be_of_this_service() {
        let (host, own) = (("host", "127.0.0.1:1"), ("origin", "http://127.0.0.1:1"));
        assert!(goes_on("/locks/k", Version::HTTP_11, &[host, own]));
        for other in
            [("origin", "http://evil.example"), ("sec-fetch-site", "same-origin, cross-site")]
        {
            assert!(!goes_on("/locks/k", Version::HTTP_11, &[host, own, other]), "{other:?}");
        }
        let rebound = [("host", "evil.example:1"), ("origin", "http://evil.example:1")];
        assert!(!goes_on("/locks/k", Version::HTTP_11, &rebound));
        assert!(!goes_on("/locks/k", Version::HTTP_11, &[]));
        assert!(goes_on("/locks/k", Version::HTTP_10, &[]));
        assert!(!goes_on("/locks/k", Version::HTTP_10, &[("host", "evil.example")]));
        let absolute = "http://evil.example/locks/k";
        assert!(!goes_on(absolute, Version::HTTP_11, &[("host", "127.0.0.1")]));
    }
}
