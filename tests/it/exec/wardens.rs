//! The process that acts when the wrapper was killed.

use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, lives};
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_wrapper_that_is_killed_are_given_back_once_its_command_is_dead() {
    let stage = Stage::new();
    for (flags, is_freed) in
        [(&[][..], true), (&["--also", "b c"], true), (&["--min-hold", "1h"], false)]
    {
        let ticker =
            Ticker::new(stage.path(&format!("ticks-{}", flags.len() + usize::from(is_freed))));
        let words = ticker.words_of_a_grandchild(Manners::Deaf);
        let flags: Vec<&str> = flags.iter().chain(&["-t", "10m", "a"]).copied().collect();
        let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(stage.exec(&words));
        let pid = ticker.ticks().await;
        going.signal("KILL");
        let held = async |key: &str| stage.look(key).await["held"] == true;
        if is_freed {
            for key in ["a", "b%20c"] {
                eventually(PATIENCE, async || (!held(key).await).then_some(())).await;
                assert!(!lives(pid), "{key} is free, and COMMAND lives");
            }
        } else {
            dead(pid).await;
            assert!(held("a").await);
        }
    }
}
