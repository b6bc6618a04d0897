//! What is asked about a line after the answers to the last questions.

use tokio::time::Instant;

use crate::lock::error::StoreError;
use crate::lock::lease::Claim;
use crate::lock::slots::Share;
use crate::lock::store::{Answer, Ask, Waiting, Win};
use crate::lock::token::LeaseToken;
use crate::lock::turns::Turn;

/// A question for a waiting claim.
pub(super) struct Question {
    pub(super) claim: Claim,
    pub(super) ask: Ask,
    /// The number of the claim's request.
    pub(super) number: u64,
}

/// A question and its answer.
pub(super) struct Answered {
    pub(super) question: Question,
    /// The turn of its claim.
    pub(super) turn: Option<Turn>,
    /// The moments of the question and of the answer.
    pub(super) at: [Instant; 2],
    pub(super) answer: Result<Answer, StoreError>,
}

/// The next questions about a key's line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// None until the moment that the answers tell.
    Sleep,
    /// None for a while: the store did not answer.
    Retry,
    /// So many claims from the head on.
    First(usize),
    /// The claim that the key was handed to.
    Handed(LeaseToken),
}

/// The questions after those for the head, or for another claim that the key was handed to; `rung`
/// if a hint led to them.
pub(super) fn after(answers: &[Answered], rung: bool) -> Next {
    let Some(head) = answers.first() else { return Next::Sleep };
    if let Ok(Answer::Waiting(Waiting { handed: Some(handed), .. })) = &head.answer
        && *handed != head.question.claim.token
    {
        return Next::Handed(handed.clone());
    }
    if answers.iter().any(|one| one.answer.is_err()) {
        return Next::Retry;
    }
    // Beside leases that share the key there may be room for more.
    if answers.iter().filter_map(Answered::win).any(|win| win.lease.share != Share::ALONE) {
        return Next::First(2 * answers.len());
    }
    // The key was free without a hint, or the claim ended elsewhere: the store may have lost the
    // line. The next claim's question restores it, or tells how long the lease lasts.
    let found_free = !rung && head.win().is_some_and(|win| win.fresh);
    match &head.answer {
        Ok(Answer::Superseded | Answer::Held(_)) => Next::First(1),
        _ if found_free => Next::First(1),
        _ => Next::Sleep,
    }
}

impl Answered {
    fn win(&self) -> Option<&Win> {
        match &self.answer {
            Ok(Answer::Won(win)) => Some(win),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use crate::lock::error::{Effect, StoreError, Verb};
    use crate::lock::next::{Answered, Next, Question, after};
    use crate::lock::sample::{claim, token, win};
    use crate::lock::slots::Slots;
    use crate::lock::store::{Answer, Ask, Waiting, Win};

    fn of(name: &str, answer: Option<Answer>) -> Answered {
        let failed = || {
            let verb = Verb::WaitTurn;
            let effect = Effect::Unknown;
            StoreError { verb, effect, fault: "the store failed", reason: "on purpose".into() }
        };
        let claim = claim("key", name, 1_000);
        let ask = Ask::InLine(Some(1));
        let question = Question { claim, ask, number: 1 };
        let turn = None;
        let answer = answer.ok_or_else(failed);
        Answered { question, turn, at: [Instant::now(); 2], answer }
    }

    fn won(fresh: bool, slots: Slots) -> Option<Answer> {
        let mut win = Win { fresh, ..win("key", 1) };
        win.lease.share.slots = slots;
        Some(Answer::Won(win))
    }

    fn waits(handed: Option<&str>) -> Option<Answer> {
        let (recheck_after, lasts) = Default::default();
        let handed = handed.map(token);
        Some(Answer::Waiting(Waiting {
            place: 1,
            ahead: 0,
            new: false,
            recheck_after,
            lasts,
            handed,
        }))
    }

    #[tokio::test]
    async fn the_next_question_follows_from_the_answers_alone() {
        for (answers, rung, next) in [
            (vec![], false, Next::Sleep),
            (vec![of("one", waits(None))], false, Next::Sleep),
            (vec![of("one", waits(Some("one")))], false, Next::Sleep),
            (vec![of("one", waits(Some("two")))], true, Next::Handed(token("two"))),
            (vec![of("one", None)], true, Next::Retry),
            (vec![of("one", won(true, Slots::ALONE))], true, Next::Sleep),
            (vec![of("one", won(true, Slots::ALONE))], false, Next::First(1)),
            (vec![of("one", won(false, Slots::ALONE))], false, Next::Sleep),
            (vec![of("one", won(true, Slots::SHARED))], true, Next::First(2)),
            (vec![of("one", won(true, Slots::SHARED)), of("two", None)], true, Next::Retry),
            (vec![of("one", Some(Answer::Superseded))], true, Next::First(1)),
        ] {
            assert_eq!(after(&answers, rung), next);
        }
    }
}
