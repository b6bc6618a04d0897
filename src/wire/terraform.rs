//! The holder of a key, in the form that Terraform and OpenTofu show.

use std::time::UNIX_EPOCH;

use humantime::format_rfc3339_seconds;
use serde::Serialize;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Owner};
use crate::lock::time::wall_clock;
use crate::lock::token::FencingToken;

/// A `LockInfo` of Terraform. Its members stand beside those of a problem; no reader confuses them.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct LockInfo {
    /// Terraform shows nothing else of it, and people paste it into `force-unlock`. Not the ID that
    /// the holder sent, which is a secret.
    #[serde(rename = "ID")]
    id: String,
    operation: String,
    info: String,
    who: String,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    path: String,
}

impl LockInfo {
    /// The holder of `key`; `info` says for how long.
    pub(crate) fn of(key: &LockKey, holder: &Holder, info: &str) -> Self {
        let owner = holder.owner.as_ref().map_or("", Owner::as_str);
        let parts = owner.strip_suffix(')').and_then(|owner| owner.rsplit_once(" ("));
        let (who, operation) = parts.unwrap_or((owner, ""));
        let fencing_token = holder.fencing_token.map(|token| token.to_string()).unwrap_or_default();
        let id = [&fencing_token, operation, who].map(|part| part.replace(' ', "_"));
        // humantime has no moments before 1970.
        let since = holder.held.and_then(|held| wall_clock().checked_sub(held));
        Self {
            id: id.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
            operation: operation.to_owned(),
            info: info.to_owned(),
            who: who.to_owned(),
            version: "",
            created: since.map(|since| format_rfc3339_seconds(since.max(UNIX_EPOCH)).to_string()),
            path: key.as_str().to_owned(),
        }
    }

    /// The number of the lease of a shown ID; the random ID of a lock has none.
    pub(crate) fn number(id: &str) -> Option<FencingToken> {
        let number = id.split_once('/').map_or(id, |(number, _)| number);
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse().ok().filter(|_| digits).and_then(FencingToken::from_number)
    }

    /// The owner of the lease that `who` takes for `operation`, from which [`Self::of`] gets both
    /// again. Cut to the length of an owner: a name never keeps Terraform from its work.
    pub(crate) fn owner(who: &str, operation: &str) -> Option<Owner> {
        let operation = if operation.is_empty() { "" } else { &format!(" ({operation})") };
        Owner::shortened(&[who, operation].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::LockInfo;
    use crate::lock::key::LockKey;
    use crate::lock::lease::Holder;
    use crate::lock::token::FencingToken;

    #[test]
    fn the_holder_is_told_by_who_and_what_and_a_number() {
        let key = LockKey::parse("tf/prod").unwrap();
        let info = |owner| {
            let fencing_token = FencingToken::from_number(7);
            LockInfo::of(&key, &Holder { owner, fencing_token, ..Holder::default() }, "")
        };
        let terraform = info(LockInfo::owner("ann lee@ci", "OperationTypeApply"));
        assert_eq!(terraform.id, "7/OperationTypeApply/ann_lee@ci");
        assert_eq!((&*terraform.who, &*terraform.operation), ("ann lee@ci", "OperationTypeApply"));
        assert_eq!(info(LockInfo::owner("exec", "")).id, "7/exec");
        assert_eq!((info(None).id, info(None).created), ("7".to_owned(), None));
        for shown in [terraform.id, "7/exec".to_owned(), "7".to_owned()] {
            assert_eq!(LockInfo::number(&shown), FencingToken::from_number(7), "{shown}");
        }
        let random = "735ce591-a87d-80c7-0cc0-13bb9ba50ee1";
        for other in [random, "", "/", "7-1/x", "+7", "7 /x", "x/7", "0", "9007199254740992/x"] {
            assert_eq!(LockInfo::number(other), None, "{other}");
        }
    }

    #[test]
    fn any_name_makes_an_owner() {
        let owner = |who, operation| LockInfo::owner(who, operation).unwrap();
        assert_eq!(owner("a\nb", "c\u{85}").as_str(), "ab (c)");
        assert_eq!(owner(&"ü".repeat(300), "x").as_str(), "ü".repeat(128));
        assert_eq!(LockInfo::owner("\u{7f}", ""), None);
    }
}
