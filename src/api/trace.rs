//! The trace that a client names in `traceparent`, for the log.

use std::sync::Arc;

use axum::http::HeaderMap;

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// The trace id of a request, as its client sent it.
pub(super) fn id(headers: &HeaderMap) -> Option<Arc<str>> {
    let mut sent = headers.get_all(TRACEPARENT).iter();
    match (sent.next(), sent.next()) {
        (Some(one), None) => parse(one.to_str().ok()?).map(Arc::from),
        _ => None,
    }
}

/// The trace id of a valid `traceparent`; versions after 00 may have more behind its four parts.
fn parse(text: &str) -> Option<&str> {
    let parts: Vec<_> = text.splitn(5, '-').collect();
    let [version, trace, parent, flags, ref more @ ..] = parts[..] else { return None };
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hex = |part: &str, bytes| part.len() == bytes && part.bytes().all(digits);
    let is_zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    let fits = is_hex(version, 2) && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    let known = version != "ff" && (version != "00" || more.is_empty());
    (fits && known && !is_zero(trace) && !is_zero(parent)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::parse;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_trace_id_is_taken_from_a_valid_header_only() {
        let parent = "00f067aa0ba902b7";
        let zeros = "0".repeat(32);
        for good in [format!("00-{TRACE}-{parent}-01"), format!("cc-{TRACE}-{parent}-00-more")] {
            assert_eq!(parse(&good), Some(TRACE), "{good}");
        }
        for bad in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-{parent}"),
            format!("00-{TRACE}-{parent}-01-more"),
            format!("00-{TRACE}-{parent}-0"),
            format!("00-{TRACE}-{parent}-0g"),
            format!("ff-{TRACE}-{parent}-01"),
            format!("cc-{TRACE}-{parent}-01more"),
            format!("00-{}-{parent}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{parent}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{parent}-01", "\u{e9}".repeat(16)),
        ] {
            assert_eq!(parse(&bad), None, "{bad}");
        }
    }
}
