//! Whether an answer is the one that a page shows.

/// What differs from one answer to the next.
const VOLATILE: [&str; 4] =
    [r#""token":"#, r#""fencing_token":"#, r#""retry_after_ms":"#, r#""waited_ms":"#];

const TTL: &str = r#""ttl_ms":"#;

/// Whether an answer is the one that is shown, `...` being anything.
pub(super) fn fits(shown: &str, real: &str) -> bool {
    let (shown, real) = (steady(shown), steady(real.trim()));
    match shown.split_once("...") {
        Some((begin, end)) => real.starts_with(begin) && real.ends_with(end),
        None => shown == real,
    }
}

/// An answer without what differs each time.
fn steady(answer: &str) -> String {
    let mut steady = answer.to_owned();
    for name in VOLATILE {
        if let Some((before, rest)) = steady.split_once(name) {
            let (value, rest) = rest.split_at(rest.find([',', '}']).unwrap());
            let value = if value == "0" { value } else { "*" };
            steady = format!("{before}{name}{value}{rest}");
        }
    }
    // What is left of it: whole seconds, by a request that took less than one.
    if let Some((before, rest)) = steady.split_once(TTL) {
        let (value, rest) = rest.split_at(rest.find([',', '}']).unwrap());
        let seconds = value.parse::<u64>().unwrap().div_ceil(1_000);
        steady = format!("{before}{TTL}{seconds}000{rest}");
    }
    match steady.split_once("for another ") {
        Some((before, rest)) => {
            format!("{before}for another *{}", &rest[rest.find('s').unwrap()..])
        }
        None => steady,
    }
}
