//! A client's questions: what they ask, and the bytes of their requests.

use crate::history::{Asked, Kind, Nanos, SHARED, Token};
use crate::http::{AUTHORIZED, request};

/// A token, as the client has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) number: Token,
    pub(super) text: String,
    /// Whether the client chose it.
    pub(super) chosen: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) kind: Kind,
    pub(super) key: u32,
    /// The token that is sent, if any.
    pub(super) token: Option<Held>,
    pub(super) asked: Asked,
}

impl Question {
    /// A question without options.
    pub(super) fn of(kind: Kind, key: u32, token: Option<Held>) -> Self {
        Self { kind, key, token, asked: Asked::default() }
    }

    /// A question for an exclusive lease, which does not wait.
    pub(super) fn claim(key: u32, token: Option<Held>, ttl_ms: u64) -> Self {
        Self::of(Kind::Acquire, key, token).lasting(ttl_ms)
    }

    /// A question about the lease that a token has.
    pub(super) fn about(kind: Kind, lease: &Lease) -> Self {
        Self::of(kind, lease.key, Some(lease.token.clone()))
    }

    /// A question about a lease, by its number.
    pub(super) fn named(kind: Kind, lease: &Lease) -> Self {
        let mut question = Self::about(kind, lease);
        question.asked.fencing_token = Some(lease.fencing_token);
        question
    }

    pub(super) fn lasting(mut self, ttl_ms: u64) -> Self {
        self.asked.ttl_ms = Some(ttl_ms);
        self
    }

    pub(super) fn waiting(mut self, wait_ms: u64) -> Self {
        self.asked.wait_ms = wait_ms;
        self
    }

    /// A question that asks for a lease in the place of that of a number, which never waits.
    pub(super) fn naming(mut self, number: u64) -> Self {
        (self.asked.fencing_token, self.asked.wait_ms) = (Some(number), 0);
        self
    }

    /// A claim with these slots, and with its units as far as they go.
    pub(super) fn sharing(mut self, slots: Option<u16>) -> Self {
        self.asked.slots = slots;
        let units = self.asked.units;
        self.taking(units)
    }

    /// A claim that takes several of its slots, if it has so many.
    pub(super) fn taking(mut self, units: Option<u16>) -> Self {
        let slots = self.asked.slots.filter(|slots| *slots != SHARED).unwrap_or(0);
        self.asked.units = units.filter(|units| *units <= slots);
        self
    }
}

/// A lease, as its holder knows it.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) key: u32,
    pub(super) token: Held,
    pub(super) fencing_token: u64,
    /// Until when the holder may rely on it.
    pub(super) until: Nanos,
}

pub(super) fn written(question: &Question) -> String {
    let Question { kind, key, token, asked } = question;
    let (method, path) = match kind {
        Kind::Acquire => ("POST", format!("/locks/k{key}")),
        Kind::Hold | Kind::Alive | Kind::HoldEnd => ("POST", format!("/hold/k{key}")),
        Kind::Refresh => ("PUT", format!("/locks/k{key}/refresh")),
        Kind::Release => ("DELETE", format!("/locks/k{key}")),
        Kind::ForceRelease => ("DELETE", format!("/admin/locks/k{key}")),
        Kind::Look => ("GET", format!("/locks/k{key}")),
    };
    let mut options = Vec::new();
    options.extend(asked.ttl_ms.map(|ttl| format!("ttl={ttl}ms")));
    if asked.wait_ms > 0 {
        options.push(format!("wait={}ms", asked.wait_ms));
    }
    if asked.linger_ms > 0 {
        options.push(format!("linger={}ms", asked.linger_ms));
    }
    options.extend(asked.slots.map(|slots| match slots {
        SHARED => "shared=true".to_owned(),
        _ => format!("slots={slots}"),
    }));
    options.extend(asked.units.map(|units| format!("units={units}")));
    options.extend(asked.fencing_token.map(|number| format!("fencing_token={number}")));
    let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
    // A key is wrong or absent, by the number of the lock.
    let authorization = match (asked.unauthorized, key % 2) {
        (false, _) => AUTHORIZED,
        (true, 0) => "authorization: Bearer key-of-nobody\r\n",
        (true, _) => "",
    };
    let token = token.as_ref().map(|token| token.text.as_str());
    request(&format!("{method} {path}{query}"), authorization, token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_an_option_of_its_own_kind() {
        let line = |slots| {
            let asked = Asked { wait_ms: 5, slots, ..Asked::default() };
            let text = written(&Question { kind: Kind::Acquire, key: 1, token: None, asked });
            text.split(" HTTP").next().unwrap().to_owned()
        };
        assert_eq!(line(Some(3)), "POST /locks/k1?wait=5ms&slots=3");
        assert_eq!(line(Some(SHARED)), "POST /locks/k1?wait=5ms&shared=true");
        assert_eq!(line(None), "POST /locks/k1?wait=5ms");
        let units = |slots| Question::claim(1, None, 9).sharing(slots).taking(Some(3)).asked.units;
        assert_eq!([Some(3), Some(2), Some(SHARED), None].map(units), [Some(3), None, None, None]);
    }
}
