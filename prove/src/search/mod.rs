//! Models of the algorithms, each searched whole, and once more without each of its rules.
//!
//! They are written apart from the service. A rule that can be left out without a counter-example would be
//! no rule, so each of them has a test that finds one.

mod hold;
mod line;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Model};

/// What a search has found.
struct Searched {
    /// How many different states there are, or were until the first counter-example.
    states: usize,
    /// The names of the properties that do not hold, each with the shortest way there.
    broken: Vec<(&'static str, Vec<String>)>,
}

impl Searched {
    /// All states were seen, and all properties hold.
    fn is_whole(&self, name: &str, at_least: usize) {
        println!("{name}: {} states", self.states);
        assert!(self.broken.is_empty(), "{name}: {:#?}", self.broken);
        assert!(self.states >= at_least, "{name}: only {} states", self.states);
    }

    /// The property does not hold.
    fn breaks(&self, name: &str, property: &str) {
        let found = self.broken.iter().find(|broken| broken.0 == property);
        let found = found.map(|broken| broken.1.join(", "));
        println!("{name}: {property} after {} states: {found:?}", self.states);
        assert!(found.is_some(), "{name}: no counter-example in {} states", self.states);
    }
}

fn search<M>(model: M) -> Searched
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().spawn_bfs().join();
    let ways = checker.discoveries().into_iter().map(|(name, path)| {
        (name, path.into_actions().iter().map(|action| format!("{action:?}")).collect())
    });
    Searched { states: checker.unique_state_count(), broken: ways.collect() }
}
